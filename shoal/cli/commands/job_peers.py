"""`shoal jobs peers`: a job's nodes in their role as peers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.terminal.options import Job, Token, Url
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import number, percent, safe, seconds, size, state, table
from shoal.core.errors import Unreachable
from shoal.core.errors.phrases import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shoal.client.api import CoordinatorApi


def peers(
    job: Job,
    watch: Annotated[bool, typer.Option("--watch", help="print the table again on each change, until Ctrl-C")] = False,
    via: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="a node's address: show its own view; the coordinator is not asked",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show the nodes of a job as peers, while they continue it without the coordinator.

    Example: shoal jobs peers digits --watch
    """
    from shoal.cli.commands import peer_status
    from shoal.cli.connection import connect
    from shoal.client.api import segment

    if via is not None:
        seen = peer_status.asked(via, job)
        out.answer({"url": via, "jobs": seen}, *peer_status.shown(seen))
        return
    with or_by_a_node(job), connect(url, token) as api:
        path = f"/jobs/{segment(job)}/peers"
        if watch and not out.flags.json:
            _follow_status(api, job, path)
        found = api.get(path)
    out.answer({"peers": found}, shown(found))


@contextmanager
def or_by_a_node(job: str) -> Iterator[None]:
    """Add a hint to ask a node when the coordinator is unreachable."""
    try:
        yield
    except Unreachable as error:
        error.hint += f"; or ask one of its nodes: shoal jobs peers {job} --via URL-OF-A-NODE"
        raise


def _follow_status(api: CoordinatorApi, job: str, path: str) -> None:
    """Print the table whenever a peer's status changes or the stream reconnects, until the job ends."""
    from shoal.client.followed_job import ENDED

    with api.events(job) as events:
        for event in events:
            if event is None or event.name not in ("hello", "peers", "job"):
                continue
            if event.name != "job":
                out.notice(shown(api.get(path)))
            elif event.data["state"] in ENDED:
                return


def shown(found: dict[str, Any]) -> RenderableType:
    """Return the table and the summary."""
    from rich.console import Group

    if not found["peers"]:
        return "no peers: allow it in the job file, and let nodes join with [bold]--peer-listen[/]"
    return Group(peer_table(found["peers"]), _sentence(found["now"]))


def peer_table(rows: list[dict[str, Any]]) -> RenderableType:
    """Return a table with one row per peer."""
    budgeted = any(row["budget"] is not None for row in rows)
    columns = ["peer", "mode", "term", "local rounds", "weight", "coverage", "alive peers"]
    columns += ["exchanges", "sent", "received", "refused"]
    columns += ["budget"] if budgeted else []
    carries = any(_carried(row) for row in rows)
    columns += ["relayed"] if carries else []
    made = table(*columns, right=columns[2:], prose=["alive peers", "refused"], spare=("weight", "term", "received"))
    for row in rows:
        edges = row["peers"].values()
        known = row["state"] is not None
        made.add_row(
            row["name"] + ("" if row["is_reachable"] else " [dim](calls only)[/]"),
            _state(row),
            number(row["term"]),
            number(row["local_rounds"]),
            number(row["weight"]),
            percent(row["coverage"]),
            _liveness(row["peers"]) if known else "–",
            str(sum(edge["exchanges"] for edge in edges)) if known else "–",
            size(sum(edge["sent"] for edge in edges)) if known else "–",
            size(sum(edge["received"] for edge in edges)) if known else "–",
            _refused(row),
            *((budget(row["budget"]),) if budgeted else ()),
            *((size(_carried(row)),) if carries else ()),
        )
    return made


def budget(found: dict[str, Any] | None) -> str:
    """Return the bytes left to a peer, and when its next exchange is possible."""
    if found is None:
        return "–"
    if found["wait_s"] > 0:
        return f"[yellow]limit reached[/], next exchange in {seconds(found['wait_s'])}"
    return f"{size(max(0, round(found['left'])))} left"


LATE_S = 15.0
"""Age in seconds from which a peer's status is shown as late; peers report theirs every 5 s."""


def _carried(row: dict[str, Any]) -> int:
    """Return the bytes that a peer has relayed to and from the coordinator."""
    return sum(edge.get("carried", 0) for edge in row["peers"].values())


def _refused(row: dict[str, Any]) -> str:
    """Return refused messages by code, and the peers that are avoided because of them."""
    parts = [f"{safe(code)} {count}" for code, count in sorted(row["refused"].items())]
    parts += [f"[yellow]{safe(name)} in quarantine[/]" for name in row.get("quarantine", [])]
    return ", ".join(parts)


def _state(row: dict[str, Any]) -> str:
    from shoal.peering.http.node_overview import MODES

    if row.get("relayed_by"):
        return f"[yellow]⇄ relayed by {safe(row['relayed_by'])}[/]"
    if row["state"] is None:
        return "–"
    late = row["told_s"] is not None and row["told_s"] > LATE_S
    return state(MODES.get(row["state"], row["state"])) + (
        f" [yellow]({seconds(row['told_s'])} ago)[/]" if late else ""
    )


def _liveness(edges: dict[str, dict[str, Any]]) -> str:
    """Return how many peers are alive, and the names of the others."""
    ill = [f"{safe(name)} {edge['state']}" for name, edge in sorted(edges.items()) if edge["state"] != "alive"]
    return ", ".join([f"{len(edges) - len(ill)} alive", *ill])


def _sentence(now: dict[str, Any] | None) -> str:
    if now is None:
        return "[dim]no peers: the coordinator runs this job[/]"
    parts = [f"{counted(now['peers'], 'peer')} in mode gossip"]
    if now["consensus"] is not None:
        parts.append(f"consensus distance {percent(now['consensus'])}")
    if now["coverage"] is not None:
        parts.append(f"coverage {percent(now['coverage'])}")
    if now["residual"] is not None:
        parts.append(f"conservation residual {number(now['residual'], 2)}")
    return ", ".join(parts)
