"""`shoal peer status`: one node's own view of a job, where there is no coordinator to ask."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.output import out
from shoal.cli.text import number, pairs, safe, seconds, size, state, table
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shoal_peer.overview import Overview

PATIENCE_S = 10.0


def status(
    where: Annotated[
        str, typer.Argument(metavar="NODE", help="address of a node, or the folder of a peer here", show_default=False)
    ],
    job: Annotated[str | None, typer.Option(help="only this job", show_default=False)] = None,
) -> None:
    """Show how a node does in its jobs, by asking the node itself: no coordinator is needed.

    Example: shoal peer status http://10.0.0.1:9001
    """
    url = where if "://" in where else address_of(Path(where))
    found = asked(url, job)
    out.answer({"url": url, "jobs": found}, *shown(found))


def address_of(folder: Path) -> str:
    """Return the address of a peer on this machine. Raises `ShoalError`."""
    from shoal.runtime.address import parse
    from shoal_peer.folder import read_papers

    running = folder / "state" / "address"
    if running.is_file():
        return running.read_text(encoding="utf-8").strip()
    me = read_papers(folder).me
    if not me.urls:
        hint = "give its address: shoal peer status http://127.0.0.1:PORT"
        raise ShoalError(f"the roster has no address of {me.node}", code="peer.address", hint=hint)
    return parse(me.urls[0]).url


def asked(url: str, job: str | None = None) -> list[dict[str, Any]]:
    """Return the status of a node in each of its jobs, or in one. Raises `ShoalError`."""
    from shoal.cli.api import segment
    from shoal.runtime.http import Link

    with Link(url, read_s=PATIENCE_S) as link:
        jobs = [job] if job else list(link.json("GET", "/p2p", own=True)["jobs"])
        return [dict(link.json("GET", f"/p2p/{segment(one)}/status", own=True)) for one in jobs]


def shown(found: list[dict[str, Any]]) -> list[RenderableType]:
    """Return what people read of it."""
    from shoal_peer.overview import overview

    parts: list[RenderableType] = []
    for one in map(overview, found):
        parts += [pairs(_head(one)), _table(one)]
        parts += [f"[yellow]·[/] {safe(text)}" for text in one.problems]
    return parts or ["this node takes part in no job at the moment"]


def _head(one: Overview) -> list[tuple[str, Any]]:
    of = f" of {one.rounds}" if one.rounds else ""
    rows: list[tuple[str, Any]] = [
        ("job", safe(one.job)),
        ("node", safe(one.node)),
        ("state", f"{safe(one.phase)}, round {one.round}{of}, {one.live} of {len(one.peers)} others here"),
    ]
    measured = [f"{safe(name)} {number(value)}" for name, value in sorted(one.metrics.items())]
    return [*rows, ("measured", ", ".join(measured))] if measured else rows


def _table(one: Overview) -> RenderableType:
    columns = ("peer", "state", "exchanges", "last exchange", "sent", "received", "problem")
    made = table(*columns, right=columns[2:6], prose=["problem"])
    for row in one.peers:
        last = "never" if row.last_exchange_s is None else f"{seconds(row.last_exchange_s)} ago"
        made.add_row(
            safe(row.name),
            state(safe(row.state)),
            str(row.exchanges),
            last,
            size(row.sent),
            size(row.received),
            safe(row.problem),
        )
    return made
