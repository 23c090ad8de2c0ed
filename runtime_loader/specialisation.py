"""One specialisation as a bundle records it: everything that selecting and launching it needs."""

from __future__ import annotations

from runtime_loader.checked import Fields, canonical_json
from runtime_loader.errors import BundleError
from runtime_loader.plan import TYPE_BITS, LaunchPlan
from runtime_loader.records import dataclass
from runtime_loader.signature import Form, read_form
from runtime_loader.target import Target, TargetError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True)
class KernelParam:
    """One explicit kernel argument: `offset` and `size` in the kernarg segment, in bytes.

    `kind` is the `.value_kind` of the code object's metadata (AMDGPUUsage, "Code Object V5
    Metadata"): `by_value`, `global_buffer` or `dynamic_shared_pointer`.
    """

    offset: int
    size: int
    kind: str


@dataclass(frozen=True)
class KernargLayout:
    """The explicit part of a kernel's kernarg segment; HIP fills the hidden part after it.

    `size` is the end of the explicit part, `segment_size` that of the whole segment, in bytes.
    """

    params: tuple[KernelParam, ...]
    size: int
    segment_size: int

    def to_json(self) -> dict[str, Any]:
        return {
            "params": [[p.offset, p.size, p.kind] for p in self.params],
            "size": self.size,
            "segment_size": self.segment_size,
        }

    @classmethod
    def read(cls, fields: Fields) -> KernargLayout:
        size = fields.integer("size", 0, 1 << 16)
        params: list[KernelParam] = []
        end = 0
        for item in fields.items("params"):
            if not isinstance(item, list) or len(item) != 3 or not isinstance(item[2], str):
                raise BundleError(f"{fields.what}: {item!r:.40} is not a kernel parameter")
            entry = Fields({"offset": item[0], "size": item[1]}, fields.what)
            param = KernelParam(
                entry.integer("offset", end, size), entry.integer("size", 1, size), item[2]
            )
            end = param.offset + param.size
            params.append(param)
        if end > size:
            raise BundleError(f"{fields.what}: kernel parameters end at {end}, after {size}")
        return cls(tuple(params), size, fields.integer("segment_size", size, 1 << 17))


@dataclass(frozen=True)
class Resources:
    """What one kernel takes from the hardware.

    Counts from the metadata note: `vgprs`, `agprs`, `sgprs` used, `vgpr_spills`, `sgpr_spills`,
    `lds` and `scratch` in bytes (per workgroup; per workitem). From the kernel descriptor:
    `allocated_vgprs` (per lane, AGPRs included where the file is unified). `waves_per_simd` is
    LLVM's occupancy: what registers and static LDS leave room for. `workgroup` is the required
    size, or zeros; `max_workgroup` the flat maximum.
    """

    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds: int
    scratch: int
    wavefront: int
    workgroup: tuple[int, int, int]
    max_workgroup: int
    allocated_vgprs: int
    waves_per_simd: int

    def to_json(self) -> dict[str, Any]:
        record = dict(vars(self))
        record["workgroup"] = list(self.workgroup)
        return record

    @classmethod
    def read(cls, fields: Fields) -> Resources:
        workgroup = fields.integers("workgroup")
        if len(workgroup) != 3:
            raise BundleError(f"{fields.what}: workgroup has {len(workgroup)} dimensions")
        x, y, z = workgroup
        names = [n for n in cls.__match_args__ if n != "workgroup"]
        return cls(workgroup=(x, y, z), **{name: fields.integer(name) for name in names})


@dataclass(frozen=True)
class KernelEntry:
    """One kernel that the plan launches: its `symbol` in the code object, layout and resources."""

    symbol: str
    kernarg: KernargLayout
    resources: Resources

    def to_json(self) -> dict[str, Any]:
        return {
            "symbol": self.symbol,
            "kernarg": self.kernarg.to_json(),
            "resources": self.resources.to_json(),
        }

    @classmethod
    def read(cls, fields: Fields) -> KernelEntry:
        return cls(
            symbol=fields.text("symbol"),
            kernarg=KernargLayout.read(Fields(fields.mapping("kernarg"), fields.what)),
            resources=Resources.read(Fields(fields.mapping("resources"), fields.what)),
        )


@dataclass(frozen=True)
class Specialisation:
    """A launcher with its compile-time values fixed, built for one target.

    `params` are the parameters as the manifest named them; `code_object` is the SHA-256 (hex) of
    the one code object that holds all `kernels`; `launcher` says where it came from
    (`module:name`), for people. `post_load` names the functions of the application that must have
    run on the loaded module (`runtime_loader.post_load`).
    """

    kernel: str
    target: Target
    params: dict[str, Any]
    signature: tuple[Form, ...]
    plan: LaunchPlan
    kernels: tuple[KernelEntry, ...]
    code_object: str
    launcher: str
    hints: dict[str, Any]
    post_load: tuple[str, ...] = ()

    def key(self) -> bytes:
        """The index key: kernel, parameters and target, separated by zero bytes."""
        return specialisation_key(self.kernel, self.params, self.target)

    def label(self) -> str:
        """How messages name it: `rmsnorm(N=4096, dtype=bf16) for gfx942`."""
        return f"{self.kernel}({format_params(self.params)}) for {self.target}"

    def to_json(self) -> dict[str, Any]:
        record = {
            "kernel": self.kernel,
            "target": str(self.target),
            "params": self.params,
            "signature": [form.to_json() for form in self.signature],
            "plan": self.plan.to_json(),
            "kernels": [kernel.to_json() for kernel in self.kernels],
            "code_object": self.code_object,
            "launcher": self.launcher,
            "hints": self.hints,
        }
        return {**record, "post_load": list(self.post_load)} if self.post_load else record

    @classmethod
    def read(cls, fields: Fields) -> Specialisation:
        """Decode a record and check that its plan, signature and kernels agree."""
        try:
            target = Target.parse(fields.text("target"))
        except TargetError as error:
            raise BundleError(f"{fields.what}: {error}") from None
        spec = cls(
            kernel=fields.text("kernel"),
            target=target,
            params=fields.mapping("params"),
            signature=fields.objects("signature", read_form),
            plan=LaunchPlan.read(Fields(fields.mapping("plan"), f"{fields.what}: plan")),
            kernels=fields.objects("kernels", KernelEntry.read),
            code_object=fields.text("code_object"),
            launcher=fields.text("launcher"),
            hints=fields.mapping("hints"),
            post_load=() if fields.optional("post_load") is None else fields.texts("post_load"),
        )
        check_specialisation(spec, fields.what)
        return spec


def check_specialisation(spec: Specialisation, what: str) -> None:
    """Raise `BundleError` unless the plan fits the signature and fills every kernel's kernarg."""
    slots = tuple(slot for form in spec.signature for slot in form.slots())
    if slots != spec.plan.inputs:
        raise BundleError(f"{what}: the plan takes {spec.plan.inputs}, the signature gives {slots}")
    types = spec.plan.value_types()
    for launch in spec.plan.launches():
        if launch.kernel >= len(spec.kernels):
            raise BundleError(f"{what}: the plan launches kernel {launch.kernel}, which is missing")
        kernel = spec.kernels[launch.kernel]
        filled = [sum(max(TYPE_BITS[types[v]], 8) // 8 for v in leaves) for leaves in launch.args]
        wanted = [param.size for param in kernel.kernarg.params]
        if filled != wanted:
            raise BundleError(
                f"{what}: the plan fills parameters of {filled} bytes, {kernel.symbol} has {wanted}"
            )


def specialisation_key(kernel: str, params: dict[str, Any], target: Target | str) -> bytes:
    """The index key of a specialisation: `kernel \\0 canonical JSON of params \\0 target`."""
    return b"\0".join([kernel.encode(), canonical_json(params), str(target).encode()])


def format_params(params: dict[str, Any]) -> str:
    """`N=4096, dtype=bf16`, in order of name."""
    return ", ".join(f"{name}={value}" for name, value in sorted(params.items()))
