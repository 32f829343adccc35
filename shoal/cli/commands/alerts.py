"""`shoal alerts`: alerts, and their acknowledgement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.terminal.options import Token, Url
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import safe, table

if TYPE_CHECKING:
    from rich.table import Table


def alerts(
    active: Annotated[bool, typer.Option("--active", help="only alerts that have not cleared")] = False,
    acknowledge: Annotated[
        int | None, typer.Option(metavar="ID", help="acknowledge this alert", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="number of entries, newest first")] = 20,
    url: Url = None,
    token: Token = None,
) -> None:
    """List alerts: lost nodes, missed quorums, diverged or stalled jobs, a disk that is almost full.

    Example: shoal alerts --active
    """
    from shoal.cli.connection import connect

    with connect(url, token) as api:
        if acknowledge is not None:
            api.post(f"/alerts/{acknowledge}/acknowledge", {})
        found = api.get("/alerts", active=str(active).lower(), limit=limit)["alerts"]
    out.answer({"alerts": found}, alert_table(found) if found else "no alerts")


def alert_table(rows: list[dict[str, Any]]) -> Table:
    """Return a table with one row per alert."""
    from shoal.core.scheduling.selection import join_names

    made = table("id", "raised", "kind", "job", "text", "cleared", "acknowledged", right=["id"], prose=["text"])
    for row in rows:
        times = [(row[name] or "–")[:19].replace("T", " ") for name in ("raised_at", "cleared_at", "acknowledged_at")]
        kind = f"[red]{row['kind']}[/]" if row["cleared_at"] is None else row["kind"]
        made.add_row(
            str(row["id"]), times[0], kind, safe(join_names(row["jobs"] or [row["job"]])), safe(row["text"]), *times[1:]
        )
    return made
