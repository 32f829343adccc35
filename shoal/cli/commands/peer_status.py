"""`shoal peer status`: one node's view of its jobs, from the node itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import number, pairs, safe, seconds, size, state, table
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shoal.peering.http.node_overview import NodeOverview

PATIENCE_S = 10.0


def status(
    where: Annotated[
        str,
        typer.Argument(
            metavar="NODE", help="address of a node, or folder of a peer on this machine", show_default=False
        ),
    ],
    job: Annotated[str | None, typer.Option(help="only this job", show_default=False)] = None,
) -> None:
    """Show a node's state in its jobs, by asking the node itself; no coordinator is needed.

    Example: shoal peer status http://10.0.0.1:9001
    """
    url = where if "://" in where else address_of(Path(where))
    found = asked(url, job)
    out.answer({"url": url, "jobs": found}, *shown(found))


def address_of(folder: Path) -> str:
    """Return the address of a peer on this machine. Raises `ShoalError`."""
    from shoal.peering.state.peer_state import read_documents
    from shoal.runtime.http.coordinator_url import parse

    running = folder / "state" / "address"
    if running.is_file():
        return running.read_text(encoding="utf-8").strip()
    me = read_documents(folder).me
    if not me.urls:
        hint = "give its address: shoal peer status http://127.0.0.1:PORT"
        raise ShoalError(f"the roster has no address of {me.node}", code="peer.address", hint=hint)
    return parse(me.urls[0]).url


def asked(url: str, job: str | None = None) -> list[dict[str, Any]]:
    """Return the status of a node in each of its jobs, or in one. Raises `ShoalError`."""
    from shoal.client.api import segment
    from shoal.runtime.http.client import Link

    with Link(url, read_s=PATIENCE_S) as link:
        jobs = [job] if job else list(link.json("GET", "/p2p", own=True)["jobs"])
        return [dict(link.json("GET", f"/p2p/{segment(one)}/status", own=True)) for one in jobs]


def shown(found: list[dict[str, Any]]) -> list[RenderableType]:
    """Return the rows of a status for people."""
    from shoal.peering.http.node_overview import overview

    parts: list[RenderableType] = []
    for one in map(overview, found):
        parts += [pairs(_head(one)), _table(one)]
        parts += [f"[yellow]·[/] {safe(text)}" for text in one.problems]
    return parts or ["this node takes part in no job at the moment"]


def _head(one: NodeOverview) -> list[tuple[str, Any]]:
    of = f" of {one.rounds}" if one.rounds else ""
    rows: list[tuple[str, Any]] = [
        ("job", safe(one.job)),
        ("node", safe(one.node)),
        (
            "state",
            f"{safe(one.phase)}, local rounds: {one.local_rounds}{of}, {one.live} of {len(one.peers)} others here",
        ),
    ]
    measured = [f"{safe(name)} {number(value)}" for name, value in sorted(one.metrics.items())]
    return [*rows, ("measured", ", ".join(measured))] if measured else rows


def _table(one: NodeOverview) -> RenderableType:
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
