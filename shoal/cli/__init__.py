"""The command `shoal`. Importing this is cheap; each command imports what it needs when it runs."""

from __future__ import annotations

import sys
from types import ModuleType


def main() -> None:
    """Run the command line of this process and exit with its code."""
    from shoal.cli import signals

    try:
        signals.listen()
        # Where click is installed, httpx imports its own command line, and with it pygments: half of what httpx costs.
        # It takes an empty module for a missing click.
        sys.modules.setdefault("httpx._main", ModuleType("httpx._main"))
        from shoal.cli.app import app

        code = app(standalone_mode=False)
        signals.decided(code)
    except KeyboardInterrupt:
        code = signals.INTERRUPTED
    signals.leave(code)
