"""Processes that begin in a few hundredths of a second: forked from one that has imported everything."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "tests.edge_client.child",
        "shoal_edge_client.peering.node",
        "shoal_peer.app",
        "shoal_peer.running",
        "shoal.cli",
        __name__,
    ]
)


class Forked:
    """A process, as `subprocess.Popen` has it. `out` and `errors`: files that get what it says."""

    def __init__(
        self, main: Callable[..., int], *given: Any, out: Path, errors: Path, more: Mapping[str, str] | None = None
    ) -> None:
        """`more`: settings in its environment, beside those of this process."""
        files, environment = (Path(os.devnull), out, errors), {**os.environ, **(more or {})}
        self._process = _FORKS.Process(target=_live, args=(main, given, files, environment), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Return its exit code, negative for a signal; None while it lives."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        """Return its exit code at its end."""
        self._process.join(timeout_s)
        assert self._process.exitcode is not None, "it goes on and on"
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


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
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(files):
        place = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
        os.dup2(place, number)
        os.close(place)
    raise SystemExit(main(*given))
