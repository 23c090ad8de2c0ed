"""Every sample kernel on every target that can be interpreted, against numpy, under all schedules.

The tests take one specialisation of each sample for each target: of n, the one at position
(number of the sample + number of the target) modulo n, so that element types and sizes rotate.
With FLYC_EXECUTE=all they take every one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flydsl.compiler.jit_executor import CompiledArtifact

from flyc_cli.builder.supervisor import Built, compile_all
from flyc_cli.manifest import expand, load_manifest
from flyc_cli.manifest.model import Request
from mlir_passes.toolkit import assemble_toolkit
from runtime_loader import hip
from runtime_loader.loader import load
from tests.hip_device.device import HipTestDevice
from tests.hip_device.interpreter.device_arguments import DeviceArguments, call_flydsl, host_entry
from tests.hip_device.interpreter.executor import Executor
from tests.hip_device.interpreter.harness import Harness
from tests.hip_device.interpreter.launch import CodeObjectProgram
from tests.hip_device.interpreter.samples import SAMPLES
from tests.hip_device.interpreter.targets import PROCESSORS
from tests.launch.oracle_bench import bundle_of

pytestmark = [pytest.mark.compile, pytest.mark.device]

_ROOT = Path(__file__).parents[2]
_MANIFESTS = _ROOT / "manifests"
_FOLDERS = ("vector_add", "gelu", "softmax", "norms", "gemm", "splitk_gemm", "tuned_gemm")


def _chosen() -> Iterator[Request]:
    requests = [
        r for f in _FOLDERS for r in expand(load_manifest(_MANIFESTS / f / "manifest.yaml"))
    ]
    for sample_number, name in enumerate(SAMPLES):
        for target_number, target in enumerate(PROCESSORS):
            found = [r for r in requests if r.kernel == name and r.target.processor == target]
            if os.environ.get("FLYC_EXECUTE") == "all":
                yield from found
            else:
                yield found[(sample_number + target_number) % len(found)]


_REQUESTS = {request.label(): request for request in _chosen()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    toolkit = assemble_toolkit(tmp_path_factory.mktemp("toolkit"))
    outcomes = compile_all(
        list(_REQUESTS.values()),
        toolkit=toolkit,
        jobs=os.cpu_count() or 1,
        keep_host=True,
        capture=True,
    )
    failed = [outcome for outcome in outcomes if not isinstance(outcome, Built)]
    assert not failed, failed
    return {o.request.label(): o for o in outcomes if isinstance(o, Built)}


@pytest.mark.parametrize("label", _REQUESTS)
def test_the_numbers_are_right(built: dict[str, Built], label: str) -> None:
    """At every size of the sample: odd ones, one row, none, several tiles."""
    one = built[label]
    harness = Harness(one.specialisation, one.code_object)
    make, sizes = SAMPLES[one.specialisation.kernel]
    for size in sizes:
        case = make(one.specialisation.params, *size)
        harness.launch(case.arguments)
        case.check()


@pytest.mark.parametrize("label", _REQUESTS)
def test_the_schedule_does_not_matter(built: dict[str, Built], label: str) -> None:
    one = built[label]
    make, sizes = SAMPLES[one.specialisation.kernel]
    case = make(one.specialisation.params, *sizes[0])
    harness = Harness(one.specialisation, one.code_object)
    harness.launch_all_ways(case.arguments, [case.output])
    case.check()


# How the compiler writes what the tables call otherwise.
_SPELLINGS = {
    "v_mfma_f32_16x16x16bf16_1k": "v_mfma_f32_16x16x16_bf16",
    "v_mfma_f32_16x16x16f16": "v_mfma_f32_16x16x16_f16",
}
_MNEMONIC = re.compile(r"^\t((?:[sv]|ds|global|buffer|flat|scratch)_\w+)(.*)", re.MULTILINE)


def _written(isa: str, kernel: str) -> list[str]:
    """The mnemonics of a kernel in the compiler's own text; padding is left to the assembler."""
    body = isa.partition(f"\n{kernel}:\n")[2].partition("\n.Lfunc_end")[0]
    names = []
    for name, rest in _MNEMONIC.findall(body):
        plain = re.sub(r"_(e32|e64|dpp|sdwa)$", "", name)
        if " :: " in rest:
            plain += "::" + rest.partition(" :: ")[2].split()[0]
        names.append(_SPELLINGS.get(plain, plain))
    return [name for name in names if name != "s_nop"]


@pytest.mark.parametrize("label", _REQUESTS)
def test_instructions_decode_to_what_the_compiler_wrote(
    built: dict[str, Built], label: str
) -> None:
    one = built[label]
    (isa,) = (text for name, text in one.stages if name == "isa")
    code = CodeObjectProgram(one.code_object)
    for kernel in code.image.kernels:
        decoded = [inst.name for inst in code.program.listing(*code.image.extent(kernel))]
        found = [name for name in decoded if name != "s_nop"]
        assert found == _written(isa, kernel)


@pytest.fixture(scope="module")
def bundle(built: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Path:
    with bundle_of(tmp_path_factory.mktemp("bundle"), list(built.values())) as made:
        return Path(made.path)


@pytest.mark.parametrize("label", _REQUESTS)
def test_the_whole_path_and_flydsls_own_runtime_give_the_same_bytes(
    label: str,
    built: dict[str, Built],
    bundle: Path,
    hip_library: Path,
    loaded_device: HipTestDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Manifest, bundle, loader, device; then FlyDSL's JIT-compiled launcher on the same device."""
    one = built[label]
    spec = one.specialisation
    make, sizes = SAMPLES[spec.kernel]
    case = make(spec.params, *sizes[0])
    monkeypatch.setenv(hip.LIBRARY_VARIABLE, str(hip_library))
    monkeypatch.setattr(hip, "_runtime", None)
    loaded_device.configure(str(spec.target))
    executor = Executor(loaded_device)
    loaded_device.set_hook(executor)
    arguments = DeviceArguments(loaded_device, case.arguments)
    with load(bundle) as opened:
        opened.kernel(spec.kernel, **spec.params)(*arguments.for_loader(spec))
        ours = arguments.download(case.output)
    case.arguments[case.output][...] = ours
    case.check()
    case.arguments[case.output].view(np.uint8)[...] = 0
    arguments.upload()
    artifact = CompiledArtifact(one.host, host_entry(one.host))
    call_flydsl(artifact._get_func_exe(), arguments.for_flydsl(spec))
    assert arguments.download(case.output).tobytes() == ours.tobytes()
    assert executor.failures == []
    del artifact
    loaded_device.reset()


def test_flyc_run_prints_counters(bundle: Path, built: dict[str, Built], hip_library: Path) -> None:
    spec = next(b.specialisation for b in built.values() if b.specialisation.kernel == "gelu")
    selection = [f"{name}={value}" for name, value in spec.params.items()]
    command = [sys.executable, "-m", "tests.hip_device.execute", "run", str(bundle), spec.kernel]
    environment = {
        **os.environ,
        "FLYC_HIP_LIBRARY": str(hip_library),
        "HIPTEST_DEVICES": str(spec.target),
    }
    done = subprocess.run(
        [*command, *selection, "--shape", "x=300", "--shape", "out=300", "--iterations", "1"],
        capture_output=True, text=True, env=environment, cwd=_ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "executed gelu_kernel_0: 1 workgroups" in done.stderr
    assert "vector memory" in done.stderr
