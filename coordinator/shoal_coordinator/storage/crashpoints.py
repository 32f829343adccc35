"""Named points at which tests kill the process, to prove that nothing is lost there.

A point stands before and after every commit, rename and answer. Outside tests it costs one look into a dictionary.
"""

from __future__ import annotations

import itertools
import os
import signal

_wanted, _, _pass = os.environ.get("SHOAL_CRASH_AT", "").partition("#")
_passes = itertools.count(1)
_last = int(_pass or 1)


def crashpoint(name: str) -> None:
    """Kill this process with SIGKILL when SHOAL_CRASH_AT names this point ("name#3": at the third pass)."""
    if name == _wanted and next(_passes) == _last:
        os.kill(os.getpid(), signal.SIGKILL)
