"""Numbers and tables as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.core.words import NOTHING, number, percent, seconds, size

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["NOTHING", "accuracy", "number", "pairs", "percent", "safe", "seconds", "size", "state", "table"]

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
    """Text from elsewhere: nothing in it is a style, nothing in it commands the terminal."""
    from rich.markup import escape

    return escape("".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in str(text)))


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
