"""`shoal failures`: tasks that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.terminal.options import Token, Url
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import safe, table

if TYPE_CHECKING:
    from rich.table import Table

OUTCOMES = {
    "asked-again": "asked again",
    "replaced": "replaced by other nodes",
    "left-out": "left out",
    "set-aside": "set aside",
    "paused": "job paused",
    "awaited": "awaited",
}
PHASES = {
    "unknown": "unknown phase",
    "init": "initialization",
    "train": "training",
    "evaluate": "evaluation",
    "fold": "aggregation",
    "contact": "lost contact",
}
"""Phases whose name in the API is not the word for people. The dashboard has the same words."""


def failures(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="only this job", show_default=False)] = None,
    node: Annotated[str | None, typer.Option(help="only this node", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="number of entries, newest first")] = 20,
    url: Url = None,
    token: Token = None,
) -> None:
    """List failed tasks, newest first: node, progress, error, and what the coordinator did about it.

    Example: shoal failures digits --node clinic-a --verbose
    """
    from shoal.cli.connection import connect
    from shoal.client.api import segment

    wanted = {name: value for name, value in (("job", job), ("node", node)) if value is not None}
    with connect(url, token) as api:
        found = api.get("/failures", limit=limit, **wanted)["failures"]
        if not found and job is not None:
            api.get(f"/jobs/{segment(job)}")  # says so where there is no such job
    for row in reversed(found):
        if row["traceback"]:
            out.detail(f"{row['node']}, task {row['task']} of {row['job']}:\n{row['traceback']}\n")
    out.answer({"failures": found}, failure_table(found) if found else "no failures")


def failure_table(rows: list[dict[str, Any]]) -> Table:
    """Format one line for each."""
    made = table("time", "job", "node", "version", "phase", "error", "outcome", prose=["error", "outcome"])
    for row in rows:
        what = OUTCOMES.get(row["outcome"], row["outcome"])
        why = f" ({safe(row['outcome_why'])})" if row["outcome_why"] else ""
        at = row["at"][:19].replace("T", " ")
        rest = (PHASES.get(row["phase"], safe(row["phase"])), safe(row["error"]), what + why)
        made.add_row(at, safe(row["job"]), safe(row["node"]), str(row["version"]), *rest)
    return made
