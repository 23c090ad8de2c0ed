"""docs/runtime.md: its code type-checks against the package, strictly."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "runtime.md").read_text()


@pytest.mark.slow
def test_the_code_on_the_page_type_checks(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    files = []
    for number, block in enumerate(blocks):
        files.append(tmp_path / f"block_{number}.py")
        files[-1].write_text(block)
    command = [sys.executable, "-m", "mypy", "--strict", *files]
    ran = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ran.returncode == 0, ran.stdout


def test_the_page_names_every_public_function_that_exists() -> None:
    import runtime_loader

    for name in re.findall(r"\brt\.(\w+)", PAGE):
        assert hasattr(runtime_loader, name), name
