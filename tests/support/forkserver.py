"""Processes that begin in a few hundredths of a second: forked from one that has imported everything."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "pytest",  # each child imports its parent's main module
        "tests.support.coordinator_process",
        "tests.support.edge_process",
        "shoal_edge_client.peering.edge_peering",
        "shoal.peering.http.peer_app",
        "shoal_peer.process",
        "shoal.cli",
        "tests.support.split_learners",
        "torch._dynamo",  # an optimizer imports it late
        __name__,
    ]
)
_ALONE = threading.Lock()
"""Starting a process polls all others, and of two who poll one only one gets to know how it ended."""
_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG


@functools.cache
def _begin() -> None:
    """Start the server. BLAS reads its settings when a process begins, not when it forks."""
    ours = dict(os.environ)
    os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(ours)


class Forked:
    """A process, as `subprocess.Popen` has it. `out` and `errors`: files that get what it says."""

    def __init__(
        self, main: Callable[..., int], *given: Any, out: Path, errors: Path, more: Mapping[str, str] | None = None
    ) -> None:
        """`more`: settings in its environment, beside those of this process."""
        files, environment = (Path(os.devnull), out, errors), {**os.environ, **(more or {})}
        self._process = _FORKS.Process(target=_live, args=(main, given, files, environment), daemon=True)
        with _ALONE:
            _begin()
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Return its exit code, negative for a signal; None while it lives."""
        with _ALONE:
            return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """Return its exit code at its end."""
        self._process.join(timeout_s)
        code = self.returncode
        assert code is not None, "it goes on and on"
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def pipe() -> tuple[Connection, Connection]:
    """Return a pipe's ends, to read from and to write to. The latter can be given to a process."""
    return _FORKS.Pipe(duplex=False)


def shoal(*arguments: str) -> int:
    """Run the command line with these arguments, as a process's `main`."""
    from shoal import cli

    sys.argv = ["shoal", *arguments]
    cli.main()
    return 0


def _live(
    main: Callable[..., int], given: Sequence[Any], files: Sequence[Path], environment: Mapping[str, str]
) -> None:
    """Run as a whole life."""
    ctypes.CDLL(None).prctl(_DEATH_OF_PARENT, signal.SIGKILL)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(files):
        place = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
        os.dup2(place, number)
        os.close(place)
    raise SystemExit(main(*given))
