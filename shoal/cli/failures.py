"""`shoal failures`: orders that were not done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.options import Token, Url
from shoal.cli.output import out
from shoal.cli.text import safe, table

if TYPE_CHECKING:
    from rich.table import Table

OUTCOMES = {
    "asked-again": "asked again",
    "replaced": "others asked in its place",
    "left-out": "left out",
    "suspended": "not asked for a while, or until it restarts",
    "paused": "the job is paused",
    "awaited": "still awaited",
}


def failures(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="of this job", show_default=False)] = None,
    node: Annotated[str | None, typer.Option(help="of this node", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="the newest so many")] = 20,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show what nodes could not do: who, how far they were, why, and what was done about it. Newest first.

    Example: shoal failures digits --node clinic-a --verbose
    """
    from shoal.cli.api import connect, segment

    wanted = {name: value for name, value in (("job", job), ("node", node)) if value is not None}
    with connect(url, token) as api:
        found = api.get("/failures", limit=limit, **wanted)["failures"]
        if not found and job is not None:
            api.get(f"/jobs/{segment(job)}")  # says so where there is no such job
    for row in reversed(found):
        if row["traceback"]:
            out.detail(f"{row['node']}, order {row['order']} of {row['job']}:\n{row['traceback']}\n")
    out.answer({"failures": found}, failure_table(found) if found else "nothing has failed")


def failure_table(rows: list[dict[str, Any]]) -> Table:
    """One line for each."""
    made = table("at", "job", "node", "version", "phase", "error", "done about it", prose=["error", "done about it"])
    for row in rows:
        what = OUTCOMES.get(row["outcome"], row["outcome"])
        why = f" ({safe(row['outcome_why'])})" if row["outcome_why"] else ""
        at = row["at"][:19].replace("T", " ")
        told = (safe(row["phase"]), safe(row["error"]), what + why)
        made.add_row(at, safe(row["job"]), safe(row["node"]), str(row["version"]), *told)
    return made
