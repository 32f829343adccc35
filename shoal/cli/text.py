"""Numbers and tables as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

STATE_STYLES = {
    "running": "green",
    "training": "green",
    "online": "green",
    "done": "bold green",
    "ok": "green",
    "waiting": "yellow",
    "paused": "yellow",
    "stale": "yellow",
    "warn": "yellow",
    "evaluating": "cyan",
    "stopped": "red",
    "failed": "bold red",
    "fail": "bold red",
    "gone": "red",
}


NOTHING = "–"
"""A figure that is not known."""


def safe(text: object) -> str:
    """Text from elsewhere: nothing in it is a style, nothing in it commands the terminal."""
    from rich.markup import escape

    return escape("".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in str(text)))


def size(nbytes: float | None) -> str:
    """Bytes in the unit that leaves few digits: 19.3 kB."""
    if nbytes is None:
        return NOTHING
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 1000:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} TB"


def seconds(duration: float | None) -> str:
    """A duration: 0.12 s, 14 s, 3 min 20 s, 2 h 05 min."""
    if duration is None:
        return NOTHING
    if duration < 9.95:
        return f"{duration:.2g} s"
    if duration < 60:
        return f"{duration:.0f} s"
    whole = round(duration)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole // 60 % 60:02d} min"


def number(value: float | str | None, digits: int = 4) -> str:
    """A metric; a missing one is a dash, and the API's "NaN" stays."""
    if value is None:
        return NOTHING
    if isinstance(value, str) or not math.isfinite(value):
        return str(value)
    return f"{value:.{digits}g}"


def percent(share: float | str | None) -> str:
    """A share as a percentage: 95.3 %."""
    if share is None:
        return NOTHING
    if isinstance(share, str) or not math.isfinite(share):
        return str(share)
    return f"{100 * share:.1f} %"


def accuracy(measured: Mapping[str, Any]) -> str:
    """The accuracy of a job's or version's `metrics`: on held-out data where it is known; with how many nodes have
    measured it, while others that were asked have not."""
    metrics, part = measured["metrics"], measured.get("provisional")
    share = percent(metrics.get("held_out/accuracy", metrics.get("eval/accuracy")))
    return f"{share} ({part['reported']} of {part['asked']} nodes)" if part else share


def state(name: str) -> str:
    """A state in its colour."""
    style = STATE_STYLES.get(name)
    return f"[{style}]{name}[/]" if style else name


def table(
    *columns: str,
    right: Iterable[str] = (),
    prose: Iterable[str] = (),
    spare: Sequence[str] = (),
    turns: bool = False,
) -> Table:
    """An empty table; columns of numbers are aligned to the `right`. For the rest see `FittingTable`."""
    from shoal.cli.tables import FittingTable

    return FittingTable(columns, right=right, prose=prose, spare=spare, turns=turns)


def pairs(rows: Sequence[tuple[str, Any]]) -> Table:
    """Names and values, one pair a line."""
    from rich.table import Table

    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, str(value))
    return made
