"""`shoal alerts`: what operators were told of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.options import Token, Url
from shoal.cli.output import out
from shoal.cli.text import safe, table

if TYPE_CHECKING:
    from rich.table import Table


def alerts(
    standing: Annotated[bool, typer.Option("--standing", help="only those that are not over")] = False,
    acknowledge: Annotated[
        int | None, typer.Option(metavar="ID", help="say that you know of this one", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="the newest so many")] = 20,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show alerts: nodes that were lost, quorums missed, runs that diverged or stand still, a disk that is low.

    Example: shoal alerts --standing
    """
    from shoal.cli.api import connect

    with connect(url, token) as api:
        if acknowledge is not None:
            api.post(f"/alerts/{acknowledge}/acknowledge", {})
        found = api.get("/alerts", standing=str(standing).lower(), limit=limit)["alerts"]
    out.answer({"alerts": found}, alert_table(found) if found else "nobody had to be told of anything")


def alert_table(rows: list[dict[str, Any]]) -> Table:
    """One line for each."""
    from shoal.core.selection import listed

    made = table("id", "raised", "kind", "job", "what", "over", "acknowledged", right=["id"], prose=["what"])
    for row in rows:
        times = [(row[name] or "–")[:19].replace("T", " ") for name in ("raised_at", "cleared_at", "seen_at")]
        kind = f"[red]{row['kind']}[/]" if row["cleared_at"] is None else row["kind"]
        made.add_row(
            str(row["id"]), times[0], kind, safe(listed(row["jobs"] or [row["job"]])), safe(row["text"]), *times[1:]
        )
    return made
