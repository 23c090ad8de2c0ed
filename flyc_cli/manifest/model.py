"""What a manifest says, and the build requests that it expands to, as frozen data classes.

Text fields that a parameter may fill (`dtype="$dtype"`, `shape=("?", "$N")`) hold the text as the
manifest has it; docs/manifest.md describes every field. `expand` gives them their values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from flyc_cli.manifest.source import Place, Spot
from flyc_cli.manifest.tuned import Choice
from runtime_loader.checked import canonical_json
from runtime_loader.signature import Form
from runtime_loader.specialisation import format_params, specialisation_key
from runtime_loader.target import Target


@dataclass(frozen=True)
class TypeValue:
    """`{type: bf16}`: the FlyDSL numeric type with that name (one of ELEMENT_TYPES)."""

    name: str


@dataclass(frozen=True)
class ObjectValue:
    """`{object: "module:attribute"}`: a Python object, imported when the kernel is built."""

    module: str
    qualname: str


@dataclass(frozen=True)
class EnumValue:
    """`{enum: "module:Class.MEMBER"}`: an enum member, imported when the kernel is built."""

    module: str
    qualname: str


@dataclass(frozen=True)
class TupleValue:
    """`{tuple: [...]}`: one Python tuple."""

    items: tuple[Value, ...]


@dataclass(frozen=True)
class ListValue:
    """`{list: [...]}`: one Python list."""

    items: tuple[Value, ...]


Value: TypeAlias = (
    "bool | int | float | str | TypeValue | ObjectValue | EnumValue | TupleValue | ListValue | None"
)


def json_value(value: Value) -> Any:
    """How `params` of a bundle show `value`: plain JSON, without module names.

    A type is its name, an enum member its name, an object its path in the module, a tuple a list.
    """
    if isinstance(value, TypeValue):
        return value.name
    if isinstance(value, ObjectValue):
        return value.qualname
    if isinstance(value, EnumValue):
        return value.qualname.rpartition(".")[2]
    if isinstance(value, (TupleValue, ListValue)):
        return [json_value(item) for item in value.items]
    return value


Extent: TypeAlias = "int | str"


@dataclass(frozen=True)
class TensorArg:
    """A tensor argument; extents and strides are in elements, `align` is in bytes.

    An extent or stride is a number, `"?"` (dynamic), `"?8"` (dynamic, a multiple of 8) or a
    template. `layout` is `static`, `dynamic` or None (each extent as written).
    """

    dtype: str
    shape: tuple[Extent, ...]
    strides: tuple[Extent, ...] | None = None
    leading_dim: Extent | None = None
    align: Extent | None = None
    divisible_by: Extent | None = None
    layout: str | None = None
    stride_bits: int | None = None


@dataclass(frozen=True)
class PointerArg:
    """A bare device pointer to `dtype` elements, aligned to `align` bytes."""

    dtype: str
    align: Extent | None = None


@dataclass(frozen=True)
class ScalarArg:
    """A number of type `type` (one of SCALAR_TYPES); `stream` and `pointer` are those arguments."""

    type: str


@dataclass(frozen=True)
class StructArg:
    """A FlyDSL `@fx.struct`: its fields by name, in order."""

    fields: Mapping[str, Arg]


@dataclass(frozen=True)
class ConstantArg:
    """`{constexpr: 4}`: a compile-time field of a struct, whose value no launch passes."""

    value: Value


@dataclass(frozen=True)
class ExampleArg:
    """A plain value that captured code is called with; it is no parameter."""

    value: bool | int | float | None


Arg: TypeAlias = "TensorArg | PointerArg | ScalarArg | StructArg | ConstantArg | ExampleArg"


@dataclass(frozen=True)
class Row:
    """One row of `matrix`, `include` or `rows`: a value by parameter, and its targets.

    A row of a tuned table also has what it is looked up with: `keys` are the plain values by name
    of every line of the table that has these values, `spot` is the first of them.
    """

    values: Mapping[str, Value]
    targets: tuple[Target, ...] = ()
    keys: tuple[Mapping[str, Any], ...] = ()
    spot: Spot | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Limits:
    """How much one specialisation may take before it is stopped: wall-clock seconds, and bytes of
    resident memory (what it shares with other workers included). None is no limit."""

    timeout: float | None = None
    memory: int | None = None

    def or_else(self, other: Limits) -> Limits:
        """These limits, and those of `other` where there are none."""
        return Limits(
            other.timeout if self.timeout is None else self.timeout,
            other.memory if self.memory is None else self.memory,
        )


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Budget:
    """What each kernel that a specialisation launches may take at most; None is no bound.

    `vgprs`, `agprs`, `sgprs` and `spills` (of both kinds) count registers, `lds` is bytes of a
    workgroup, `scratch` bytes of a workitem, `code_size` bytes of machine code; `waves` is how many
    waves must fit on a SIMD at least.
    """

    vgprs: int | None = None
    agprs: int | None = None
    sgprs: int | None = None
    spills: int | None = None
    lds: int | None = None
    scratch: int | None = None
    code_size: int | None = None
    waves: int | None = None

    def or_else(self, other: Budget) -> Budget:
        """These bounds, and those of `other` where there are none."""
        both = zip(vars(self).items(), vars(other).values(), strict=True)
        return Budget(**{n: theirs if own is None else own for (n, own), theirs in both})


NO_BUDGET = Budget()


@dataclass(frozen=True)
class Budgets:
    """`budgets`: `all` holds everywhere, unless `targets` say otherwise for theirs."""

    all: Budget = NO_BUDGET
    targets: Mapping[Target, Budget] = field(default_factory=dict)

    def of(self, target: Target) -> Budget:
        """The bounds on a target; the entry that names most of its features goes first."""
        own = [wanted for wanted in self.targets if covers(wanted, target)]
        found = NO_BUDGET
        for wanted in sorted(own, key=lambda t: -len(t.features)):
            found = found.or_else(self.targets[wanted])
        return found.or_else(self.all)


NO_BUDGETS = Budgets()


@dataclass(frozen=True)
class TableKeys:
    """What a kernel's tuned table is looked up with; `nearest` are those of `names` that need not
    match (runtime_loader.table)."""

    names: tuple[str, ...]
    nearest: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exclusion:
    """One entry of `exclude`: drops what has all of `values`, a target of `targets`, and `when`."""

    values: Mapping[str, Value] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    when: str | None = None


@dataclass(frozen=True)
class Kernel:
    """One entry of `kernels`.

    One of `launcher`, `factory` (with `select`) and `capture` (with `device` and `tensors`) is
    given, as `module:name`, or `mlir` or `code_object` (with `launch`), as a file or one for each
    target. `kwargs`, `constexpr` and `params` hold the swept values of each parameter; a parameter
    of `matrix` that none of them names is a factory's keyword argument or a launcher's compile-time
    value. The rows of `rows` are in `matrix`; `table` says what the bundle's table of them is
    looked up with. `tuned`
    has the choices of a tuner's offline configs.
    """

    name: str
    launcher: str | None = None
    factory: str | None = None
    capture: str | None = None
    mlir: str | Mapping[Target, str] | None = None
    code_object: str | Mapping[Target, str] | None = None
    launch: tuple[Mapping[str, Any], ...] = ()
    select: str | int | tuple[str | int, ...] | None = None
    device: Mapping[str, Any] = field(default_factory=dict)
    tensors: str = "fake"
    kwargs: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    constexpr: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    params: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    matrix: tuple[Row, ...] = ()
    table: TableKeys | None = None
    tuned: tuple[Choice, ...] = ()
    include: tuple[Row, ...] = ()
    exclude: tuple[Exclusion, ...] = ()
    targets: tuple[Target, ...] = ()
    args: Mapping[str, Arg] = field(default_factory=dict)
    hints: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    limits: Limits = NO_LIMITS
    budgets: Budgets = NO_BUDGETS
    python_path: tuple[str, ...] = ()


@dataclass(frozen=True)
class Device:
    """`device`: what captured code sees. `units` as `multi_processor_count` counts them (compute
    units, or workgroup processors on RDNA), `memory` in bytes."""

    name: str
    units: int
    memory: int


@dataclass(frozen=True)
class ArgDefaults:
    """`defaults.args`: what tensors (and pointers: `align`) have unless they say otherwise."""

    align: int | None = None
    stride_bits: int | None = None


@dataclass(frozen=True)
class Defaults:
    """`defaults`: what every kernel has unless it says otherwise."""

    targets: tuple[Target, ...] = ()
    args: ArgDefaults = ArgDefaults()
    hints: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    limits: Limits = NO_LIMITS


@dataclass(frozen=True)
class Toolchain:
    """`toolchain`: absolute directories.

    `rocm` has the linker and device libraries to use, `llvm` the LLVM/MLIR that emits code objects.
    """

    rocm: Path | None = None
    llvm: Path | None = None


@dataclass(frozen=True)
class Manifest:
    """A whole manifest. `directory` is what its relative paths start from.

    `sha256` (hex) is that of the file and of the row files that it names; `spot` knows the place of
    every value in the file.
    """

    name: str
    kernels: tuple[Kernel, ...]
    targets: tuple[Target, ...] = ()
    directory: Path = Path()
    python_path: tuple[str, ...] = (".",)
    defaults: Defaults = Defaults()
    budgets: Budgets = NO_BUDGETS
    toolchain: Toolchain = Toolchain()
    sha256: str = ""
    spot: Spot = field(default=Spot("manifest"), compare=False, repr=False)


@dataclass(frozen=True)
class LaunchSpec:
    """One described launch of a code object, with its templates filled in.

    `grid`, `block`, `cluster`, `lds` are expressions (text or integers). `args` has one entry for
    each kernel argument: the name of an argument or an expression, {type: expression}, or a tuple
    of those that fill one argument back to back; None means all arguments in order.
    """

    symbol: str
    grid: tuple[str | int, ...]
    block: tuple[str | int, ...]
    args: tuple[Any, ...] | None = None
    lds: str | int | None = None
    cluster: tuple[str | int, ...] | None = None
    cooperative: bool = False


@dataclass(frozen=True)
class Source:
    """Where a launcher comes from: `kind` is `launcher`, `factory`, `capture` or one of RAW.

    A factory is called with `kwargs`; `select` then picks an item (by index or key) or attribute
    of what it returns, or several. Captured code is called with `kwargs`, the plain values
    `examples` and tensors like the request's `args`, on `device`; `host_data`: they have values.

    A raw kernel is the file `module`, as the manifest names it: `file` is its absolute path,
    `file_sha256` (hex) that of its bytes, `launches` what a code object's launcher does.
    """

    kind: str
    module: str
    qualname: str
    kwargs: dict[str, Value] = field(default_factory=dict)
    select: str | int | tuple[str | int, ...] | None = None
    device: Device | None = None
    examples: dict[str, Any] = field(default_factory=dict)
    host_data: bool = False
    file: str = ""
    file_sha256: str = ""
    launches: tuple[LaunchSpec, ...] = ()

    def __str__(self) -> str:
        return self.module if self.file else f"{self.module}:{self.qualname}"


@dataclass(frozen=True)
class Request:
    """One specialisation to build. `params` are plain JSON; everything else is resolved.

    `constexpr` are the launcher's compile-time values by name, and those in its struct arguments by
    path (`config.width`).

    `python_path` entries are absolute; `where` is the entry or row that asked for it. `rows` are
    the keys of every row of the kernel's tuned table that means this specialisation.
    """

    kernel: str
    target: Target
    params: dict[str, Any]
    source: Source
    constexpr: dict[str, Value]
    args: tuple[Form, ...]
    hints: dict[str, Any]
    env: dict[str, str]
    python_path: tuple[str, ...]
    where: Place
    rows: tuple[Mapping[str, Any], ...] = ()
    limits: Limits = NO_LIMITS
    budget: Budget = NO_BUDGET

    def key(self) -> bytes:
        """The index key that the specialisation will have in the bundle."""
        return specialisation_key(self.kernel, self.params, self.target)

    def label(self) -> str:
        """How messages name it: `rmsnorm(N=4096, dtype=bf16) for gfx942`."""
        return f"{self.kernel}({format_params(self.params)}) for {self.target}"


def covers(wanted: Target, target: Target) -> bool:
    """Whether `target` is `wanted`, or `wanted` with more features fixed."""
    return wanted.processor == target.processor and set(wanted.features) <= set(target.features)


def params_key(params: Mapping[str, Any]) -> bytes:
    """Equal for two sets of parameters exactly if a caller cannot tell them apart."""
    return canonical_json(dict(params))
