"""The import rules between the packages, read from the sources themselves."""

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STDLIB = set(sys.stdlib_module_names)

# What each package may import besides itself and the standard library.
ALLOWED = {
    "runtime_loader": {"zstandard"},
    "mlir_passes": {"runtime_loader", "flydsl._mlir"},
    "flyc_cli": {"runtime_loader", "mlir_passes", "click", "rich", "yaml", "zstandard"},
}
# Modules for an extra, which nothing else imports at import time.
EXTRAS = {
    "runtime_loader/trust.py": "cryptography",
    "runtime_loader/torch.py": "torch",
    "flyc_cli/signing.py": "cryptography",
    "flyc_cli/builder/scheduler.py": "distributed",
}
# The one adapter to FlyDSL, and the modules that only run inside compile workers.
MAY_IMPORT_FLYDSL = {
    "flyc_cli/frontends",
    "flyc_cli/builder/job.py",
    "flyc_cli/builder/fork_server.py",
}


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at any depth, by full dotted name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(str(node.module))
    return found


def allowed(package: str, path: Path, module: str) -> bool:
    root = module.partition(".")[0]
    if root in STDLIB or root == package:
        return True
    if any(module == name or module.startswith(f"{name}.") for name in ALLOWED[package]):
        return True
    if EXTRAS.get(str(path.relative_to(ROOT))) == root:
        return True
    worker = any(str(path.relative_to(ROOT)).startswith(prefix) for prefix in MAY_IMPORT_FLYDSL)
    return worker and root in ("flydsl", "torch")


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_only_what_their_layer_may(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    broken = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files
        for module in sorted(imports(path))
        if not allowed(package, path, module)
    ]
    assert broken == []


@pytest.mark.parametrize("package", ["runtime_loader", "mlir_passes"])
def test_lower_layers_do_not_know_the_upper_ones(package: str) -> None:
    upper = {"runtime_loader": {"mlir_passes", "flyc_cli"}, "mlir_passes": {"flyc_cli"}}[package]
    for path in (ROOT / package).rglob("*.py"):
        assert not {module.partition(".")[0] for module in imports(path)} & upper, path


def test_no_two_test_files_have_the_same_name() -> None:
    """pytest imports them by their names alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
