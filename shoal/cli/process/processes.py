"""The processes of a demo."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.process import signals
from shoal.cli.process.child_of_parent import IMPORTS, PARENT
from shoal.cli.terminal.output import out
from shoal.core.errors import ShoalError

TAIL_LINES = 15
THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


@dataclass
class DemoProcess:
    """A process with its log."""

    name: str
    process: subprocess.Popen[str]
    log: Path

    def tail(self) -> str:
        """Return the last lines of the log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])


class ProcessGroup:
    """The processes of a demo and their folder. Use `process_group`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: list[DemoProcess] = []
        # Neither a person's settings nor a shoal.toml in their folder may steer what this starts.
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith("SHOAL_")}
        self._environment |= dict.fromkeys(THREADS, "1")  # more would only get into each other's way
        self._environment["SHOAL_CONFIG"] = str(folder / "empty.toml")
        self._environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        (folder / "empty.toml").touch()

    def start(self, name: str, arguments: Sequence[str], imports: str = "", **environment: str) -> DemoProcess:
        """Start `shoal ARGUMENTS` in the background, its output in a log."""
        log = self.folder / f"{name}.log"
        with log.open("a", encoding="utf-8") as written, signals.held():  # started and not known, it would be left
            process = subprocess.Popen(
                [sys.executable, "-m", "shoal.cli.process.child_of_parent", *arguments],
                cwd=self.folder,
                env={**self._environment, PARENT: str(os.getpid()), IMPORTS: imports, **environment},
                stdin=subprocess.PIPE,
                stdout=written,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # a Ctrl-C at the terminal is for this process
            )
            child = DemoProcess(name, process, log)
            self.children.append(child)
        out.detail(f"{name}: process {process.pid}, log {log}")
        return child

    def kill_one(self, name: str) -> None:
        """Kill one process with SIGKILL."""
        child = next(one for one in self.children if one.name == name)
        with signals.held():
            self.children.remove(child)
            child.process.kill()
            child.process.wait()

    def check(self) -> None:
        """Raise `ShoalError` with the end of its log if a process has ended."""
        self._check(self._codes(), ())

    def all_ended(self) -> bool:
        """Return whether all processes have exited with 0. Raises `ShoalError` with the log of one that failed."""
        codes = self._codes()
        self._check(codes, (0,))
        return None not in codes

    def _codes(self) -> list[int | None]:
        with signals.held():  # `poll` has a lock, which `kill` needs too
            return [child.process.poll() for child in self.children]

    def _check(self, codes: Sequence[int | None], good: Sequence[int]) -> None:
        for child, code in zip(self.children, codes, strict=True):
            if code is not None and code not in good:
                raise ShoalError(
                    f"{child.name} has ended with exit code {code}; the end of its log:\n{child.tail()}",
                    code="demo.crashed",
                    hint="shoal doctor looks for what could be wrong on this machine",
                )

    def kill(self) -> None:
        """Kill all processes."""
        for child in self.children:
            if child.process.stdin is not None:
                with suppress(OSError):  # a token that was never read
                    child.process.stdin.close()
            child.process.kill()
        for child in self.children:
            child.process.wait()

    def clear(self) -> None:
        """Kill all processes and remove the folder."""
        try:
            self.kill()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def process_group(prefix: str) -> Iterator[ProcessGroup]:
    """Yield a temporary folder for processes. At exit, all processes end and the folder is removed."""
    with signals.listening():
        with signals.held():
            processes = ProcessGroup(Path(tempfile.mkdtemp(prefix=prefix)))
            signals.at_end(processes.clear)
        try:
            yield processes
        finally:
            signals.done(processes.clear)
