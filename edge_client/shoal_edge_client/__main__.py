"""`python -m shoal_edge_client`: an edge client with settings from the environment or the configuration file."""

from __future__ import annotations

import sys

from shoal.configuration import load
from shoal.core.errors import InvalidJob, NotAllowed, ShoalError, Unreachable
from shoal_edge_client.process import run
from shoal_edge_client.settings import EdgeSettings

FAILED, USAGE, CONNECTION = 1, 2, 3


def main() -> int:
    """Run, print an error if there is one, and return the exit code."""
    try:
        return run(load(EdgeSettings, "edge"))
    except ShoalError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        if isinstance(error, Unreachable | NotAllowed):
            return CONNECTION
        return USAGE if isinstance(error, InvalidJob) or error.code.startswith(("config.", "usage.")) else FAILED


if __name__ == "__main__":
    sys.exit(main())
