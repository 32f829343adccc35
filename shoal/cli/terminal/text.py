"""Numbers, texts and tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.core.errors.phrases import NOTHING, is_curve_point, number, percent, seconds, size

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "NOTHING",
    "accuracy",
    "is_curve_point",
    "number",
    "pairs",
    "percent",
    "safe",
    "seconds",
    "size",
    "state",
    "table",
]

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


def safe(text: object) -> str:
    """Return foreign text without markup and control characters."""
    from rich.markup import escape

    return escape("".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in str(text)))


def accuracy(measured: Mapping[str, Any]) -> str:
    """Return the accuracy in `metrics`: on held-out data if known, else with the number of nodes that measured it."""
    metrics, part = measured["metrics"], measured.get("provisional")
    share = percent(metrics.get("held_out/accuracy", metrics.get("eval/accuracy")))
    return f"{share} ({part['reported']} of {part['asked']} nodes)" if part else share


def state(name: str) -> str:
    """Return a state in its color."""
    style = STATE_STYLES.get(name)
    return f"[{style}]{name}[/]" if style else name


def table(
    *columns: str,
    right: Iterable[str] = (),
    prose: Iterable[str] = (),
    spare: Sequence[str] = (),
    turns: bool = False,
) -> Table:
    """Return an empty table; columns of numbers are aligned to the `right`. See `FittingTable`."""
    from shoal.cli.terminal.tables import FittingTable

    return FittingTable(columns, right=right, prose=prose, spare=spare, turns=turns)


def pairs(rows: Sequence[tuple[str, Any]]) -> Table:
    """Return names and values as a table, one pair per line."""
    from rich.table import Table

    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, str(value))
    return made
