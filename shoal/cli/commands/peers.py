"""`shoal peers`: a job's nodes as each other's peers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.options import Job, Token, Url
from shoal.cli.output import out
from shoal.cli.text import number, percent, safe, seconds, size, state, table
from shoal.core.errors import Unreachable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shoal.cli.api import Api


def peers(
    job: Job,
    watch: Annotated[bool, typer.Option("--watch", help="print the table anew as things change, until Ctrl-C")] = False,
    via: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="a node's address: show its own view, without a coordinator",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show how a job's nodes do as each other's peers, while they carry it on without the coordinator.

    Example: shoal peers digits --watch
    """
    from shoal.cli import peer_status
    from shoal.cli.api import connect, segment

    if via is not None:
        seen = peer_status.asked(via, job)
        out.answer({"url": via, "jobs": seen}, *peer_status.shown(seen))
        return
    with or_by_a_node(job), connect(url, token) as api:
        path = f"/jobs/{segment(job)}/peers"
        if watch and not out.flags.json:
            _watch(api, job, path)
        found = api.get(path)
    out.answer({"peers": found}, shown(found))


@contextmanager
def or_by_a_node(job: str) -> Iterator[None]:
    """Where the coordinator cannot be reached, name the way to ask a node."""
    try:
        yield
    except Unreachable as error:
        error.hint += f"; or ask one of its nodes: shoal peers {job} --via URL-OF-A-NODE"
        raise


def _watch(api: Api, job: str, path: str) -> None:
    """The table, anew whenever a peer has told something or the stream was interrupted, until the job has ended."""
    from shoal.cli.follow import ENDED

    with api.events(job) as events:
        for event in events:
            if event is None or event.name not in ("hello", "peers", "job"):
                continue
            if event.name != "job":
                out.notice(shown(api.get(path)))
            elif event.data["state"] in ENDED:
                return


def shown(found: dict[str, Any]) -> RenderableType:
    """All of it as people read it."""
    from rich.console import Group

    if not found["peers"]:
        return "no peers: allow it in the job file, and let nodes join with [bold]--peer-listen[/]"
    return Group(peer_table(found["peers"]), _sentence(found["now"]))


def peer_table(rows: list[dict[str, Any]]) -> RenderableType:
    """One line for each peer."""
    metered = any(row["budget"] is not None for row in rows)
    columns = ["peer", "state", "term", "round", "weight", "holds", "sees", "exchanges", "sent", "received", "refused"]
    columns += ["budget"] if metered else []
    carries = any(_carried(row) for row in rows)
    columns += ["carried"] if carries else []
    made = table(*columns, right=columns[2:], prose=["sees", "refused"], spare=("weight", "term", "received"))
    for row in rows:
        edges = row["peers"].values()
        told = row["state"] is not None
        made.add_row(
            row["name"] + ("" if row["inbound"] else " [dim](calls only)[/]"),
            _state(row),
            number(row["term"]),
            number(row["round"]),
            number(row["weight"]),
            percent(row["coverage"]),
            _liveness(row["peers"]) if told else "–",
            str(sum(edge["exchanges"] for edge in edges)) if told else "–",
            size(sum(edge["sent"] for edge in edges)) if told else "–",
            size(sum(edge["received"] for edge in edges)) if told else "–",
            _refused(row),
            *((budget(row["budget"]),) if metered else ()),
            *((size(_carried(row)),) if carries else ()),
        )
    return made


def budget(found: dict[str, Any] | None) -> str:
    """How many bytes a peer may still send and receive, and when it may exchange again."""
    if found is None:
        return "–"
    if found["wait_s"] > 0:
        return f"[yellow]used up[/], again in {seconds(found['wait_s'])}"
    return f"{size(max(0, round(found['left'])))} left"


LATE_S = 15.0
"""A peer's word is told every 5 s."""


def _carried(row: dict[str, Any]) -> int:
    """Bytes that a peer has passed on to the coordinator for others, and back."""
    return sum(edge.get("carried", 0) for edge in row["peers"].values())


def _refused(row: dict[str, Any]) -> str:
    """What a peer has refused, by code, and with whom it begins nothing because of it."""
    parts = [f"{safe(code)} {count}" for code, count in sorted(row["refused"].items())]
    parts += [f"[yellow]{safe(name)} in quarantine[/]" for name in row.get("quarantine", [])]
    return ", ".join(parts)


def _state(row: dict[str, Any]) -> str:
    if row.get("relayed_by"):
        return f"[yellow]⇄ relayed by {safe(row['relayed_by'])}[/]"
    if row["state"] is None:
        return "–"
    late = row["told_s"] is not None and row["told_s"] > LATE_S
    return state(row["state"]) + (f" [yellow]({seconds(row['told_s'])} ago)[/]" if late else "")


def _liveness(edges: dict[str, dict[str, Any]]) -> str:
    """How many others live, as it sees them; and those that do not, by name."""
    ill = [f"{safe(name)} {edge['state']}" for name, edge in sorted(edges.items()) if edge["state"] != "alive"]
    return ", ".join([f"{len(edges) - len(ill)} alive", *ill])


def _sentence(now: dict[str, Any] | None) -> str:
    if now is None:
        return "[dim]nobody carries the job on without the coordinator[/]"
    parts = [f"{now['peers']} carry on"]
    if now["consensus"] is not None:
        parts.append(f"models are {percent(now['consensus'])} from their mean")
    if now["coverage"] is not None:
        parts.append(f"each holds {percent(now['coverage'])} of all rounds")
    if now["residual"] is not None:
        parts.append(f"residual {number(now['residual'], 2)}")
    return ", ".join(parts)
