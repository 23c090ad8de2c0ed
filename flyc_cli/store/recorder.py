"""Records what the code of a kernel's author looks at while it is imported and traced.

Files and directories are seen through Python's audit events (`open`, `os.listdir`, …) and through
`os.stat`, imports through a finder that never finds, environment variables through the class of
`os.environ`. Runs in a compile worker and nowhere else: an audit hook cannot be taken back.

What cannot be followed (another process, the network) is said instead; such a build is not found
again by its input, only by what it traced.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from flyc_cli.frontends.environment import without_settings
from flyc_cli.store.dependencies import ALL_VARIABLES, Dependency, Kind, States
from flyc_cli.store.paths import FLYC, Roots

_IMPORT_SYSTEM = "<frozen importlib._bootstrap_external>"
# A process or a connection: what it answers is nobody's dependency.
_UNTRACKED = {
    "subprocess.Popen": "runs another program",
    "os.system": "runs another program",
    "os.exec": "runs another program",
    "os.posix_spawn": "runs another program",
    "os.fork": "forks",
    "os.forkpty": "forks",
    "socket.connect": "connects to the network",
    "socket.getaddrinfo": "connects to the network",
}
_NOT_FILES = ("/dev/", "/proc/self/")


@dataclass(frozen=True)
class Looked:
    """What was looked at, and the state of each; `untracked` says what could not be followed."""

    dependencies: tuple[Dependency, ...]
    states: tuple[str, ...]
    untracked: str | None


class Recorder:
    """Records in one process. `install` before the compiler is imported: from then on environment
    look-ups count; `start` in the fork that builds: from then on everything does."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._set: set[str] = set()
        self._variables: set[str] = set()
        self._seen: dict[Dependency, str] = {}
        self._searched: dict[tuple[str, str], None] = {}
        self._written: set[str] = set()
        self._untracked: str | None = None
        self._recording = False
        self._busy = False
        self._roots = Roots(())
        self._states = States({})
        self._ignored: tuple[str, ...] = ()
        self._distributions: tuple[str, ...] = ()
        self._standard = f"{sysconfig.get_paths()['stdlib']}/"
        spec = importlib.util.find_spec("flydsl")
        found = spec.submodule_search_locations if spec else None
        self._flydsl = f"{found[0]}/" if found else ""

    def install(self) -> None:
        """Begin to see. `os.environ` is taken to be what the worker was given."""
        recorder = self

        class Environ(os._Environ):  # type: ignore[type-arg]
            def __getitem__(self, key: Any) -> Any:
                recorder._looked_up(key)
                return super().__getitem__(key)

            def __iter__(self) -> Iterator[Any]:
                recorder._looked_up(ALL_VARIABLES)
                return super().__iter__()

            def __setitem__(self, key: Any, value: Any) -> None:
                recorder._set.add(_text(key))
                super().__setitem__(key, value)

            def __delitem__(self, key: Any) -> None:
                recorder._set.add(_text(key))
                super().__delitem__(key)

        os.environ.__class__ = Environ
        os.environb.__class__ = Environ
        sys.addaudithook(self._audit)
        for name in ("stat", "lstat", "access"):
            setattr(os, name, self._looking(getattr(os, name)))
        original = os.getcwd

        def getcwd() -> str:
            self._note("directory", ".")
            return original()

        os.getcwd = getcwd

    def imported(self, before: frozenset[str]) -> None:
        """Note the distributions of the modules that were imported since `before`."""
        roots = {name.partition(".")[0] for name in sys.modules.keys() - before}
        with self.paused():
            known = importlib.metadata.packages_distributions() if roots else {}
        found = {name for root in roots for name in known.get(root, ())}
        self._distributions = tuple(sorted(found - {"flydsl", "flyc"}))

    def start(self, python_path: Sequence[str], ignored: Sequence[str]) -> None:
        """Begin to record everything; what is below the paths `ignored` is the build's own."""
        ours = [f"{FLYC}/{name}" for name in ("flyc_cli", "mlir_passes", "runtime_loader")]
        self._ignored = (self._flydsl or "/dev/", *(f"{path}/" for path in (*ignored, *ours)))
        self._roots = Roots(python_path)
        self._states = States(self._environment)
        sys.meta_path.insert(0, _Finder(self))
        self._recording = True

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside is flyc's, not the author's."""
        busy, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = busy

    def note_file(self, path: str) -> None:
        """Note a file that native code reads."""
        self._note("file", path)

    def looked(self) -> Looked:
        """What was looked at so far."""
        with self.paused():
            for directory, module in self._searched:
                self._see(Dependency("import", f"{self._roots.name(directory)}:{module}"))
            for name in self._variables:
                self._see(Dependency("environment", name))
            for name in self._distributions:
                self._see(Dependency("distribution", name))
            now = States(self._environment)
            changed = [d for d, state in self._seen.items() if now.of(d, self._roots) != state]
        untracked = self._untracked
        if changed:
            untracked = f"{changed[0].name} changed while it was read"
        ordered = sorted(self._seen)
        return Looked(tuple(ordered), tuple(self._seen[d] for d in ordered), untracked)

    def _see(self, dependency: Dependency) -> None:
        if dependency not in self._seen:
            self._seen[dependency] = self._states.of(dependency, self._roots)

    def _looked_up(self, key: Any) -> None:
        if self._busy or self._asked_by_flydsl():
            return
        name = _text(key)
        if name == ALL_VARIABLES or (
            name not in self._set and name in without_settings({name: ""})
        ):
            self._variables.add(name)

    def _note(self, kind: Kind, path: Any) -> None:
        """Note a path as it was given, unless it is the build's own."""
        if not self._recording or self._busy or isinstance(path, int):
            return
        with self.paused():
            name = os.fspath(path)
            name = os.fsdecode(name) if isinstance(name, bytes) else name
            if kind == "directory":
                self._see(Dependency("directory", "."))
                return
            if not os.path.isabs(name):  # noqa: PTH117
                self._see(Dependency("directory", "."))
            name = os.path.abspath(name)  # noqa: PTH100
            if name in self._written or self._is_ours(name):
                return
            self._see(Dependency(kind, self._roots.name(name)))

    def _asked_by_flydsl(self) -> bool:
        """Whether FlyDSL asks for itself, as for where its debug files would go.

        What it compiles is decided by settings that a build takes away or sets itself.
        """
        frame = sys._getframe(2)
        while frame.f_back is not None:
            file = frame.f_code.co_filename
            asked = file.startswith("<frozen") or file == __file__ or self._is_standard(file)
            if not asked:
                return bool(self._flydsl) and file.startswith(self._flydsl)
            frame = frame.f_back
        return False

    def _is_ours(self, path: str) -> bool:
        if path.startswith((*self._ignored, *_NOT_FILES)):
            return True
        return self._is_standard(path)

    def _is_standard(self, path: str) -> bool:
        return path.startswith(self._standard) and "-packages/" not in path

    def _searching(self, name: str, path: Sequence[str] | None) -> None:
        if self._busy:
            return
        module = name.rpartition(".")[2]
        for entry in sys.path if path is None else path:
            if not entry:
                self._note("directory", ".")
            self._searched[os.path.abspath(entry), module] = None  # noqa: PTH100

    def _looking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, *args: Any, **kwargs: Any) -> Any:
            if self._recording and not self._busy and not self._asked_by_flydsl():
                self._note("exists", path)
            return original(path, *args, **kwargs)

        return look

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._recording or self._busy:
            return
        if event == "open":
            self._opened(*args)
        elif event in ("os.listdir", "os.scandir"):
            self._listed(args[0], sys._getframe(1).f_code.co_filename)
        elif event in ("ctypes.dlopen", "sqlite3.connect"):
            if isinstance(args[0], str) and "/" in args[0]:
                self._note("file", args[0])
        elif event == "import":
            if args[1]:
                self._note("file", args[1])
        elif event in _UNTRACKED and self._untracked is None:
            what = f" ({args[0]!r:.80})" if args else ""
            self._untracked = f"it {_UNTRACKED[event]}{what}"

    def _opened(self, path: Any, mode: Any, flags: int) -> None:
        if path is None or isinstance(path, int):
            return
        access = flags & os.O_ACCMODE
        if access == os.O_WRONLY or flags & (os.O_TRUNC | os.O_EXCL):
            with self.paused():
                self._written.add(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100
            return
        self._note("file", path)

    def _listed(self, path: Any, caller: str) -> None:
        if caller == _IMPORT_SYSTEM:
            return
        if isinstance(path, int):
            # shutil.rmtree, of what the code itself has made.
            if not caller.endswith("/shutil.py"):
                self._untracked = self._untracked or "it lists a directory through a descriptor"
            return
        self._note("list", "." if path is None else path)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        self._recorder._searching(fullname, path)


def looked_to_json(looked: Looked) -> dict[str, Any]:
    """What a worker hands to its supervisor."""
    return {
        "dependencies": [list(dependency) for dependency in looked.dependencies],
        "states": list(looked.states),
        "untracked": looked.untracked,
    }


def looked_from_json(value: Mapping[str, Any]) -> Looked:
    """The reverse of `looked_to_json`."""
    return Looked(
        tuple(Dependency(kind, name) for kind, name in value["dependencies"]),
        tuple(value["states"]),
        value["untracked"],
    )


def _text(key: Any) -> str:
    return os.fsdecode(key) if isinstance(key, bytes) else str(key)
