"""The command `shoal`. Importing this package is cheap; each command imports its dependencies when it runs."""

from __future__ import annotations


def main() -> None:
    """Run the command line of this process and exit with its code."""
    from shoal.cli.process import signals

    try:
        signals.listen()
        from shoal.cli.app import app

        code = app(standalone_mode=False)
        signals.decided(code)
    except KeyboardInterrupt:
        code = signals.INTERRUPTED
    signals.leave(code)
