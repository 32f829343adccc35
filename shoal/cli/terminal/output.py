"""Output of commands.

    result      stdout      tables for people; with --json one envelope and nothing else
    notice      stdout      with --json stderr; not with --quiet
    progress    stderr      a bar on a terminal, elsewhere a line now and then; not with --quiet
    error       stderr      one sentence, and a hint; with --json the envelope on stdout instead

The envelope is `{"schema_version": 1, "status": "ok", "data": {…}}` or `{…, "status": "error", "error": {"code",
"message", "hint"}}`. NaN and infinity are written as strings, as in the HTTP API.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from shoal.cli.terminal.text import safe

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

SCHEMA_VERSION = 1
PIPED_COLUMNS = 160
"""Width of tables that no terminal limits, so that a pipe gets whole lines."""
LINE_S = 30.0
"""Interval in seconds of progress lines in a log."""


@dataclass(frozen=True)
class Flags:
    """The flags of every command."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    config: Path | None = None


class Output:
    """The output of a command, through the instance `out`."""

    def __init__(self) -> None:
        self.begin(Flags())

    def begin(self, flags: Flags) -> None:
        """Reset, with these flags."""
        self.flags = flags
        self.has_answered = False
        self._consoles: dict[str, Console] = {}

    def console(self, stream: str) -> Console:
        """Return the console for "stdout" or "stderr"."""
        if stream not in self._consoles:
            from rich.console import Console

            found = Console(stderr=stream == "stderr", highlight=False, emoji=False)
            if not found.is_terminal:
                found.width = PIPED_COLUMNS
            self._consoles[stream] = found
        return self._consoles[stream]

    def notice(self, text: RenderableType) -> None:
        """Print a message while the command runs."""
        if not self.flags.quiet:
            self._show("stderr" if self.flags.json else "stdout", text)

    def _show(self, stream: str, part: RenderableType, before: str = "") -> None:
        """Print text or a table, without trailing blanks outside a terminal."""
        console = self.console(stream)
        with nullcontext() if console.is_terminal else console.capture() as captured:
            console.print(before, end="")
            console.print(part, soft_wrap=isinstance(part, str))
        if captured is not None:
            text = "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
            console.out(text, end="", highlight=False)

    def interrupted(self, what_stays: str) -> None:
        """Print what continues after Ctrl-C."""
        if what_stays:
            self.notice(safe(what_stays))
        elif self.console("stderr").is_terminal and not self.flags.quiet:
            from rich.control import Control
            from rich.segment import ControlType

            self.console("stderr").control(Control(ControlType.CARRIAGE_RETURN))
            self.console("stderr").print("interrupted")

    def detail(self, text: str) -> None:
        """Print a message with --verbose only."""
        if self.flags.verbose:
            self.console("stderr").print(safe(text), style="dim", soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.console("stderr").print(f"[yellow]warning:[/] {safe(text)}", soft_wrap=True)

    def answer(self, data: Mapping[str, Any], *shown: RenderableType) -> None:
        """Print the command's result: `data` with --json, else `shown`."""
        self.has_answered = True
        if self.flags.json:
            _envelope("ok", data=data)
            return
        for number, part in enumerate(shown):
            after_table = number and not isinstance(shown[number - 1], str)
            self._show("stdout", part, "\n" if after_table or (number and not isinstance(part, str)) else "")

    def error(self, message: str, code: str, hint: str = "", usage: str = "") -> None:
        """Print an error; as text if an answer as JSON has been printed, since there is one of them."""
        had_answered, self.has_answered = self.has_answered, True
        if self.flags.json and not had_answered:
            _envelope("error", error={"code": code, "message": message, "hint": hint})
            return
        console = self.console("stderr")
        if usage:
            console.print(usage, style="dim", markup=False, soft_wrap=True)
        console.print(f"[bold red]error:[/] {safe(message)}", soft_wrap=True)
        if hint:
            console.print(f"[bold]hint:[/] {safe(hint)}", soft_wrap=True)

    @contextmanager
    def progress(self, what: str, total: float | None) -> Iterator[ReportProgress]:
        """Yield a function that moves a bar on stderr; outside a terminal it prints a line now and then."""
        console = self.console("stderr")
        if self.flags.quiet:
            yield lambda done, text="", below="": None
            return
        if not console.is_terminal:
            yield Lines(safe(what), total, lambda line: console.print(line, soft_wrap=True))
            return
        from rich.console import Group
        from rich.live import Live
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.text import Text

        columns = (
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(24, complete_style="cyan", finished_style="green", pulse_style="cyan"),
        )
        bar = Progress(*columns, TextColumn("{task.fields[text]}"), TimeElapsedColumn(), console=console)
        task = bar.add_task(what, total=total, text="")
        line = Text(style="dim", no_wrap=True, overflow="ellipsis")

        def advance(done: float, text: str = "", below: str = "") -> None:
            bar.update(task, completed=done, text=text)
            line.plain = f"  {below}" if below else ""

        # Notices on stdout must go above the bar when both are the same terminal, and stay on stdout when it is a pipe.
        both = sys.stdout.isatty() and not self.flags.json
        with Live(Group(bar, line), console=console, transient=True, redirect_stdout=both, refresh_per_second=8):
            yield advance


class ReportProgress(Protocol):
    """A progress function: position, status text (with markup), and an optional second line (without)."""

    def __call__(self, done: float, text: str = "", below: str = "") -> None: ...


class Lines:
    """Progress for logs: one line at most every `LINE_S` seconds."""

    def __init__(self, what: str, total: float | None, say: Callable[[str], None]) -> None:
        self._what, self._total, self._say = what, total, say
        self._said_at = time.monotonic()

    def __call__(self, done: float, text: str = "", below: str = "") -> None:
        now = time.monotonic()
        if now - self._said_at >= LINE_S:
            self._said_at = now
            share = f"{done / self._total:.0%}" if self._total else "…"
            self._say(f"{self._what}: {text or share}")


def _envelope(status: str, **content: Any) -> None:
    body = {"schema_version": SCHEMA_VERSION, "status": status, **content}
    sys.stdout.write(json.dumps(plain(body), allow_nan=False) + "\n")
    sys.stdout.flush()


def plain(value: Any) -> Any:
    """Return the result of a command as JSON values."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)


out = Output()


def log_level() -> str:
    """Return the log level for long-running commands."""
    return "debug" if out.flags.verbose else "warning" if out.flags.quiet else "info"
