"""Reading decoded JSON that is hostile until checked: typed fields, or a `BundleError`."""

from __future__ import annotations

from runtime_loader.errors import BundleError
from runtime_loader.plain_json import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")


def canonical_json(value: object) -> bytes:
    """The one encoding of `value` that keys and content hashes are made of (ASCII, sorted)."""
    return dumps(value).encode("ascii")


def parse_json(data: bytes, what: str) -> Any:
    """Decode JSON text; `what` names the record in errors."""
    try:
        return loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{what} is not valid JSON: {error}") from None


class Fields:
    """Typed access to one JSON object."""

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, dict):
            raise BundleError(f"{what} is {type(value).__name__}, not an object")
        self._value: dict[str, Any] = value
        self.what = what

    def _get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        value = self._value.get(key, default)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise BundleError(f"{self.what}: field {key!r} is missing or of the wrong type")
        return value

    def text(self, key: str) -> str:
        text = str(self._get(key, str))
        if not text.isprintable():
            raise BundleError(f"{self.what}: {key} {text!r:.60} has characters that do not print")
        return text

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        return tuple(Fields({key: item}, self.what).text(key) for item in self.items(key))

    def flag(self, key: str) -> bool:
        return bool(self._get(key, bool, False))

    def integer(self, key: str, low: int = 0, high: int = 2**63 - 1) -> int:
        value = int(self._get(key, int))
        if not low <= value <= high:
            raise BundleError(f"{self.what}: {key} = {value} is outside {low}..{high}")
        return value

    def integers(self, key: str, low: int = 0, high: int = 2**63 - 1) -> tuple[int, ...]:
        return tuple(check_integer(v, low, high, f"{self.what}: {key}") for v in self.items(key))

    def items(self, key: str) -> list[Any]:
        return list(self._get(key, list))

    def mapping(self, key: str) -> dict[str, Any]:
        return dict(self._get(key, dict))

    def objects(self, key: str, read: Callable[[Fields], T]) -> tuple[T, ...]:
        """Read a list of objects, each through `read`."""
        return tuple(
            read(Fields(item, f"{self.what}: {key}[{i}]")) for i, item in enumerate(self.items(key))
        )

    def optional(self, key: str) -> Any:
        """The value as it is, or None when the field is absent."""
        return self._value.get(key)


def check_integer(value: object, low: int, high: int, what: str) -> int:
    """`value` as an int within `low..high` (inclusive), or a `BundleError`."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BundleError(f"{what}: {value!r:.40} is not an integer in {low}..{high}")
    return value
