from collections.abc import Iterable
from typing import Any

LIMITS: dict[str, int]

class Launcher:
    native_launches: int
    last_launch: int
    def _prepare(
        self,
        arguments: tuple[tuple[object, ...], ...],
        program: tuple[object, ...],
        ordinal: int,
        launch: int,
        get_device: int,
        stream_device: int,
        is_capturing: int,
        /,
    ) -> None: ...
    def _run_program(
        self, inputs: tuple[int, ...], /
    ) -> list[tuple[int, tuple[int, int, int], tuple[int, int, int], int, int, bytes]] | None: ...
    def _become_part(self, kernel: Launcher, /) -> None: ...
    def _mark_ranges(self, name: str, push: int, pop: int, /) -> None: ...
    def each(self, calls: Iterable[Any], /) -> int: ...

class Selection:
    def _prepare(self, names: tuple[str, ...], fixed: int, get_device: int, /) -> None: ...
    def _add_table(
        self,
        ordinal: int,
        readers: tuple[tuple[int, int, bool, int, tuple[tuple[bool, int, int], ...]], ...],
        /,
    ) -> None: ...

def tick() -> int: ...
def inherit_vectorcall(type: type[Launcher | Selection], /) -> None: ...
