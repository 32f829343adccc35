"""The end of a demo: the next commands, and the page until Ctrl-C."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import safe

if TYPE_CHECKING:
    from shoal.cli.demos.plumbing import DemoPlan
    from shoal.cli.process.processes import ProcessGroup

NEXT = (
    ("new mine", "a folder with a model, data and a job of your own"),
    ("simulate job.toml", "in that folder: train it on this machine"),
    ("coordinator", "serve jobs: nodes enter by `shoal join`, `shoal run job.toml` submits"),
)
"""Commands that a user wants after a demo, and their purpose."""


def stays(keep: bool | None) -> bool:
    """Return whether the demo goes on serving: as --keep or --exit says, else if a person sits at the terminal."""
    if keep is not None:
        return keep
    return not out.flags.json and sys.stdin.isatty() and sys.stdout.isatty()


def show_next_commands() -> None:
    """Print `NEXT`, for people."""
    if out.flags.json:
        return
    shoal = program(sys.argv[0])
    width = max(len(f"{shoal} {command}") for command, _ in NEXT)
    out.notice("\n[bold]Next[/]")
    for command, purpose in NEXT:
        line = f"{shoal} {command}"
        out.notice(f"  {safe(line.ljust(width))}  [dim]{safe(purpose)}[/]")


def program(path: str) -> str:
    """Return the command that starts this program, which was started as `path`, from any folder."""
    if Path(path).name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m shoal"
    found = shutil.which("shoal")
    if found is not None and Path(found).resolve() == Path(path).resolve():
        return "shoal"
    return shlex.quote(str(Path(path).absolute()))


def wait_for_interrupt(processes: ProcessGroup, plan: DemoPlan) -> None:
    """Keep everything running until Ctrl-C."""
    secret = processes.folder / "data" / "operator.token"
    try:
        out.notice(f"\nstill running: {plan.page}  [dim](Ctrl-C ends it; operator token: {secret})[/]")
        while True:
            processes.check()
            time.sleep(0.5)
    except KeyboardInterrupt:
        out.notice("stopping")
