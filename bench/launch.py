"""What one launch costs the host: ours in its forms, FlyDSL's, hip-python's, ctypes', a C loop's.

All launch RMSNorm with six arguments (three tensors, rows, eps, stream) on the HIP test device,
which does next to nothing when it does not record. They take turns in one process; ratios are
taken round by round. Times are the thread's CPU time, so that other processes matter little. The
tensors are torch's, in RAM, and say that they are on a GPU.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from ctypes import c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ROUNDS = 15
TARGET = "gfx942"
N = 4096
BASE = "FlyDSL CompiledFunction"
DIRECT = "torch tensors"

MANIFEST = f"""
flyc: 1
name: launch
targets: [{TARGET}]
python_path: [{ROOT}/manifests/norms, {ROOT}/manifests/common]
kernels:
  - name: rmsnorm
    launcher: norms:rmsnorm
    constexpr: {{N: {N}, dtype: bf16}}
    args:
      x: {{dtype: bf16, shape: ["?", {N}], leading_dim: 1, align: 16}}
      weight: {{dtype: bf16, shape: [{N}], layout: static, align: 16}}
      out: {{dtype: bf16, shape: ["?", {N}], leading_dim: 1, align: 16}}
      rows: i32
      eps: f32
  - name: rmsnorm_pointers
    launcher: norms:rmsnorm
    constexpr: {{N: {N}, dtype: bf16}}
    args:
      x: {{dtype: bf16, shape: [64, {N}], layout: static, align: 16}}
      weight: {{dtype: bf16, shape: [{N}], layout: static, align: 16}}
      out: {{dtype: bf16, shape: [64, {N}], layout: static, align: 16}}
      rows: i32
      eps: f32
  - name: rmsnorm_of
    launcher: norms:rmsnorm
    constexpr: {{N: {N}, dtype: [bf16, f16, f32]}}
    args: &of
      x: {{dtype: $dtype, shape: ["?", {N}], leading_dim: 1, align: 16}}
      weight: {{dtype: $dtype, shape: [{N}], layout: static, align: 16}}
      out: {{dtype: $dtype, shape: ["?", {N}], leading_dim: 1, align: 16}}
      rows: i32
      eps: f32
  - name: rmsnorm_tuned
    launcher: norms:rmsnorm
    constexpr: {{N: {N}, dtype: $dtype}}
    rows:
      values: [{{rows: 64, dtype: bf16}}, {{rows: 4096, dtype: f16}}]
      params: [dtype]
      keys: [rows]
      nearest: [rows]
    args: *of
"""


# The kernel of each operator that launches the same.
OPERATORS = {
    "operator of one": "rmsnorm",
    "operator, by dtype": "rmsnorm_of",
    "operator, by a table": "rmsnorm_tuned",
}


class Contest:
    """Contestants by name; each says how long its calls took, in nanoseconds for one."""

    def __init__(self) -> None:
        self._measures: dict[str, Callable[[], float]] = {}

    def add(self, name: str, call: Callable[..., object], *args: object, calls: int) -> None:
        """A contestant that is called from Python with these arguments."""
        call(*args)
        names = "".join(f"a{n}, " for n in range(len(args)))
        timer = timeit.Timer(
            f"launch({names})",
            # Local variables, as in a function that launches.
            setup=f"launch = call; {names or '_'} = args",
            timer=time.thread_time,
            globals={"call": call, "args": args},
        )
        self.add_measure(name, lambda: timer.timeit(calls) / calls * 1e9)

    def add_loop(self, name: str, loop: Callable[[Any], int], calls: Sequence[int]) -> None:
        """A contestant that makes all calls of a sequence in one."""
        timer = timeit.Timer(lambda: loop(calls), timer=time.thread_time)
        self.add_measure(name, lambda: timer.timeit(1) / len(calls) * 1e9)

    def add_measure(self, name: str, measure: Callable[[], float]) -> None:
        self._measures[name] = measure

    def surround(self, name: str, context: Callable[[], AbstractContextManager[None]]) -> None:
        """Let a contestant's calls be made in a context, whose own cost is not counted."""
        measure = self._measures[name]

        def surrounded() -> float:
            with context():
                return measure()

        self._measures[name] = surrounded

    def rounds(self, count: int) -> dict[str, list[float]]:
        taken: dict[str, list[float]] = {name: [] for name in self._measures}
        for _ in range(count + 1):
            for name, measure in self._measures.items():
                taken[name].append(measure())
        return {name: times[1:] for name, times in taken.items()}


def worker(scratch: Path) -> dict[str, Any]:
    """All measurements; runs in a process whose loader finds the test device."""
    import torch

    import runtime_loader as rt
    from flyc_cli.builder.build import build
    from runtime_loader import hip
    from runtime_loader.native import VARIABLE
    from tests.hip_device.device import HipTestDevice
    from tests.native.device_tensor import device_tensor_type

    device = HipTestDevice(Path(os.environ[hip.LIBRARY_VARIABLE]))
    device.configure(TARGET)
    manifest = scratch / "manifest.yaml"
    manifest.write_text(MANIFEST)
    bundle = build(manifest, scratch / "out").link
    library = ctypes.CDLL(os.environ[hip.LIBRARY_VARIABLE])

    plain = [torch.zeros(shape, dtype=torch.bfloat16) for shape in ((64, N), (N,), (64, N))]
    exchanging = device_tensor_type(scratch)
    by_method = type("ByMethod", (exchanging,), {"__dlpack_c_exchange_api__": None})
    tensors = [tensor.as_subclass(exchanging) for tensor in plain]
    slower = [tensor.as_subclass(by_method) for tensor in plain]
    addresses = [tensor.data_ptr() for tensor in plain]
    numbers = (64, 1e-5, 0)

    opened = rt.load(bundle)
    kernel = opened.kernel("rmsnorm")
    pointers = opened.kernel("rmsnorm_pointers")
    os.environ[VARIABLE] = "0"
    in_python = rt.load(bundle)
    kernel_in_python = in_python.kernel("rmsnorm")
    pointers_in_python = in_python.kernel("rmsnorm_pointers")
    del os.environ[VARIABLE]

    contest = Contest()
    flydsl(contest, plain)
    device.set_recording(False)
    many, few = 20_000, 5_000
    contest.add(DIRECT, kernel, *tensors, *numbers, calls=many)
    contest.add("torch tensors by data_ptr()", kernel, *slower, *numbers, calls=many)
    for name, kind in OPERATORS.items():
        contest.add(name, opened.op(kind), *tensors, *numbers, calls=many)
    contest.add("raw pointers", pointers, *addresses, *numbers, calls=many)
    bound = pointers.bind(*addresses, eps=1e-5, stream=0)
    contest.add("bind, rows move", bound, 64, calls=many)
    contest.add("bind, nothing moves", pointers.bind(*addresses, *numbers), calls=many)
    rows = range(1, many + 1)
    contest.add_loop("bind, rows move, each(list)", bound.each, list(rows))
    contest.add_loop("bind, rows move, each(int64)", bound.each, array("q", rows))
    with plain_tensors_on_gpu():
        contest.add("fallback, torch tensors", kernel_in_python, *plain, *numbers, calls=few)
    contest.surround("fallback, torch tensors", plain_tensors_on_gpu)
    contest.add("fallback, raw pointers", pointers_in_python, *addresses, *numbers, calls=few)
    hip_python(contest, few)
    triton(contest, device, plain, few)
    by_ctypes(contest, library, few)
    contest.add_measure("C loop", c_loop(scratch, library, many * 10))
    table = contest.rounds(ROUNDS)
    return {"table": table, "growth": growth(many)}


@contextmanager
def plain_tensors_on_gpu() -> Iterator[None]:
    """Let torch's own tensors, which a subclass of theirs would be slower than, say that they are
    on a GPU. FlyDSL takes them as they are."""
    import torch

    torch.Tensor.device = torch.device("cuda", 0)  # type: ignore[assignment]
    try:
        yield
    finally:
        del torch.Tensor.device


def flydsl(contest: Contest, tensors: list[Any]) -> None:
    """FlyDSL's two ways to launch, on the same launcher."""
    sys.path[:0] = [str(ROOT / "manifests" / name) for name in ("norms", "common")]
    compiler = importlib.import_module("flydsl.compiler")
    rmsnorm = importlib.import_module("norms").rmsnorm
    stream = importlib.import_module("flydsl.expr").Stream(0)
    args = (*tensors, 64, 1e-5, N, "bf16", stream)
    contest.add(BASE, compiler.compile(rmsnorm, *args), *args, calls=5_000)
    contest.add("FlyDSL @flyc.jit", rmsnorm, *args, calls=3)


SIZES = {"kernarg": 40, "offset": 32}


def hip_python(contest: Contest, calls: int) -> None:
    """hip-python, where it is installed, with a ready argument buffer."""
    try:
        hip = importlib.import_module("hip").hip
    except ImportError:
        return
    buffer, size = (ctypes.c_char * SIZES["kernarg"])(), c_size_t(SIZES["kernarg"])
    extra = (c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
    address = ctypes.addressof(extra)

    def launch(rows: int) -> None:
        hip.hipModuleLaunchKernel(1, rows, 1, 1, 256, 1, 1, 0, None, None, address)

    contest.add("hip-python, ready buffer", launch, 64, calls=calls)


def triton(contest: Contest, device: Any, tensors: list[Any], calls: int) -> None:
    """Triton's full dispatch of a kernel with the same arguments, where it is installed."""
    try:
        module = importlib.import_module("bench.triton_rmsnorm")
    except ImportError:
        return
    for tensor in tensors:  # it asks HIP for each address
        device.check("hipHostRegister", tensor.data_ptr(), tensor.nbytes, 0)
    library = str(Path(os.environ["LD_LIBRARY_PATH"]) / "libamdhip64.so")
    launch = module.dispatch(TARGET, N, library)
    contest.add("Triton", launch, *tensors, 64, 1e-5, calls=calls)


def by_ctypes(contest: Contest, library: ctypes.CDLL, calls: int) -> None:
    """ctypes with a ready argument buffer: no check, no argument packed."""
    buffer, size = (ctypes.c_char * SIZES["kernarg"])(), c_size_t(SIZES["kernarg"])
    extra = (c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
    launch = library.hipModuleLaunchKernel
    launch.argtypes = (c_void_p, *[c_uint] * 7, *[c_void_p] * 3)
    args = (1, 64, 1, 1, 256, 1, 1, 0, None, None, extra)
    contest.add("ctypes, ready buffer", launch, *args, calls=calls)


def c_loop(scratch: Path, library: ctypes.CDLL, count: int) -> Callable[[], float]:
    output = scratch / "c_loop.so"
    source = Path(__file__).parent / "c_loop.c"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", source, "-o", output], check=True)
    loop = ctypes.CDLL(str(output)).c_loop
    loop.restype = c_uint64
    loop.argtypes = (c_void_p, c_void_p, c_void_p, c_size_t, c_size_t, c_uint, c_uint)
    buffer = (ctypes.c_char * SIZES["kernarg"])()
    launch = ctypes.cast(library.hipModuleLaunchKernel, c_void_p)
    args = (launch, 1, buffer, SIZES["kernarg"], SIZES["offset"], 256, count)
    return lambda: float(loop(*args)) / count


def growth(calls: int) -> dict[str, dict[int, float]]:
    """Nanoseconds of a launch with so many arguments: raw pointers, and tensors with checks."""
    import torch

    from runtime_loader import hip
    from runtime_loader.native import make_kernel
    from runtime_loader.plan import Block, End, Launch, LaunchPlan, Op
    from runtime_loader.signature import Form, PointerForm, StreamForm, TensorForm
    from runtime_loader.specialisation import (
        KernargLayout,
        KernelEntry,
        KernelParam,
        Resources,
        Specialisation,
    )
    from tests.native.device_tensor import device_tensor_type

    resources = Resources(8, 0, 16, 0, 0, 0, 0, 64, (0, 0, 0), 256, 8, 8)
    runtime = hip.runtime()
    device = runtime.device()

    def kernel(forms: list[Form], strides: int) -> Any:
        slots = tuple(slot for form in forms for slot in form.slots())
        one, stream = len(slots) + 1, len(slots)
        params = tuple(KernelParam(8 * n, 8, "by_value") for n in range(len(forms)))
        layout = KernargLayout(params, 8 * len(forms), 8 * len(forms))
        leaves = tuple((n * strides,) for n in range(len(forms)))
        body = (
            Op("const", "i32", constant=1),
            Launch(0, (one, one, one), (one, one, one), stream, leaves),
        )
        plan = LaunchPlan((*slots, "ptr"), (Block((), body, End()),))
        spec = Specialisation(
            kernel="growth",
            target=device.target,
            params={"arguments": len(forms)},
            signature=(*forms, StreamForm("stream")),
            plan=plan,
            kernels=(KernelEntry("growth", layout, resources),),
            code_object="0" * 64,
            launcher="bench:growth",
            hints={},
        )
        return make_kernel(runtime, device, spec, [1])

    grown: dict[str, dict[int, float]] = {"raw pointers": {}, "torch tensors": {}}
    with tempfile.TemporaryDirectory() as scratch:
        exchanging = device_tensor_type(Path(scratch))
        tensor = torch.zeros(64, N, dtype=torch.bfloat16).as_subclass(exchanging)
        for count in (1, 2, 5, 10, 20, 40):
            pointers: list[Form] = [PointerForm(f"p{n}", "bf16", 16) for n in range(count)]
            tensors: list[Form] = [
                TensorForm(f"t{n}", "bf16", (-1, N), (-8, 1), 16) for n in range(count)
            ]
            for name, forms, strides, value in (
                ("raw pointers", pointers, 1, 1 << 32),
                ("torch tensors", tensors, 3, tensor),
            ):
                call = kernel(forms, strides)
                args = [value] * count
                contest = Contest()
                contest.add(name, call, *args, 0, calls=calls)
                grown[name][count] = statistics.median(contest.rounds(5)[name])
    return grown


def report(results: dict[str, Any]) -> str:
    """Medians with their spread, and ratios to FlyDSL's fastest way, round by round."""
    table: dict[str, list[float]] = results["table"]
    lines = [f"one launch, 6 arguments, {ROUNDS} rounds: ns, and times of {BASE} (spread)"]
    for name, times in table.items():
        ratios = sorted(base / own for base, own in zip(table[BASE], times, strict=True))
        low, high = ratios[1], ratios[-2]
        lines.append(
            f"{name:30} {statistics.median(times):12,.1f} ns"
            f"   {statistics.median(ratios):9.4g} x  ({low:.4g} to {high:.4g})"
        )
    lines.append(f"added to {DIRECT}")
    for name in OPERATORS:
        added = [own - direct for own, direct in zip(table[name], table[DIRECT], strict=True)]
        lines.append(f"{name:30} {statistics.median(added):+12,.1f} ns")
    lines.append("ns by number of arguments")
    for name, costs in results["growth"].items():
        costs = {int(count): cost for count, cost in costs.items()}
        each = (costs[40] - costs[1]) / 39
        shown = "  ".join(f"{count}: {cost:.0f}" for count, cost in costs.items())
        lines.append(f"{name:30} {shown}   ({each:.1f} for each more)")
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(worker(Path(sys.argv[2]))))
        return
    from mlir_passes.toolkit import LLD_VERSION, assemble_toolkit
    from tests.hip_device.build import build as build_hip_device

    with tempfile.TemporaryDirectory(prefix="flyc-bench-") as scratch:
        library = build_hip_device(Path(scratch) / "hip")
        # The name that hip-python looks for.
        (library.parent / "libamdhip64.so").symlink_to(library.name)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FLYDSL_")},
            "LD_LIBRARY_PATH": str(library.parent),
            "FLYC_HIP_LIBRARY": str(library),
            "HIPTEST_DEVICES": TARGET,
            "LLD_VERSION": LLD_VERSION,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]),
            "ROCM_PATH": str(assemble_toolkit(Path(scratch) / "toolkit").directory),
            "FLYDSL_RUNTIME_ENABLE_CACHE": "0",
            "FLYDSL_GPU_ARCH": TARGET,
            "ARCH": TARGET,
        }
        result = subprocess.run(
            [sys.executable, "-m", "bench.launch", "--worker", scratch],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    results = json.loads(result.stdout.splitlines()[-1])
    print(json.dumps(results) if "--json" in sys.argv[1:] else report(results))


if __name__ == "__main__":
    main()
