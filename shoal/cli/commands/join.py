"""`shoal join`: an edge client on this machine."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.data import share_cache
from shoal.cli.options import Device, Precision, spread
from shoal.cli.output import out
from shoal.cli.text import pairs
from shoal.cli.values import assignments
from shoal.extras import not_installed

if TYPE_CHECKING:
    from shoal_edge_client.settings import EdgeSettings


@dataclass(frozen=True)
class Machine:
    """What it computes with, and where; and what jobs may choose it by."""

    device: Device = None
    precision: Precision = None
    train_in: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="thread or process (default: a process of its own, so that this one answers, if others call it)",
            show_default=False,
        ),
    ] = None
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="what jobs may choose this node by; repeatable", show_default=False),
    ] = None
    hours: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HH:MM-HH:MM", help="ask this node at these hours alone, in UTC; repeatable", show_default=False
        ),
    ] = None


@dataclass(frozen=True)
class Peering:
    """How this machine takes part when the coordinator is away."""

    peer_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="carry jobs on with the other nodes while the coordinator is away; where they call this one, or none",
            show_default=False,
        ),
    ] = None
    peer_url: Annotated[
        str | None, typer.Option(metavar="URL", help="how they reach that address", show_default=False)
    ] = None
    prepare: Annotated[
        bool, typer.Option("--prepare", help="only fetch what is needed to enter jobs later, without the coordinator")
    ] = False
    peer_bytes_per_hour: Annotated[
        float | None,
        typer.Option(
            metavar="BYTES", min=0, help="bytes that may cross in an hour among them, in each job", show_default=False
        ),
    ] = None


@spread
def join(
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="address of the coordinator; else SHOAL_EDGE__URL", show_default=False),
    ] = None,
    *,
    learner: Annotated[
        str | None, typer.Option(help="your model and data: FILE.py:NAME or PACKAGE.MODULE:NAME", show_default=False)
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(help="one-time token (sht_…), needed the first time; - reads it from stdin", show_default=False),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="passed to the learner; repeatable", show_default=False),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="name of this node (default: the machine's)", show_default=False)
    ] = None,
    machine: Machine,
    state: Annotated[
        Path | None, typer.Option(help="folder for the credential and unsent reports", show_default=False)
    ] = None,
    peering: Peering,
) -> int:
    """Train on this machine's data for a coordinator, until its jobs have ended or Ctrl-C.

    Example: shoal join http://host:8080 --token sht_… --learner mine.py:learner --option part=0

    Data and code stay here; models and updates travel. Ctrl-C once hands the work back and leaves, twice ends at once.
    """
    from shoal.settings import load
    from shoal_edge_client.running import run
    from shoal_edge_client.settings import EdgeSettings

    secret = sys.stdin.readline().strip() if token == "-" else token  # noqa: S105 - a dash is no secret
    given: dict[str, Any] = {
        "url": url,
        "learner": learner,
        "token": secret,
        "name": name,
    }
    given |= {"state": state, "options": assignments(option, "--option") if option else None}
    given |= asdict(machine) | asdict(peering)
    given |= {"tags": given.pop("tag") or None, "hours": machine.hours or None}
    given["log_level"] = "debug" if out.flags.verbose else "warning" if out.flags.quiet else None
    only_prepare = given.pop("prepare")
    settings = load(EdgeSettings, "edge", config=out.flags.config, given=given)
    if only_prepare:
        return prepared(settings)
    share_cache()
    code = run(settings)
    if code == 0:
        out.answer({"url": settings.url, "name": settings.node, "left": True})
    return code


def prepared(settings: EdgeSettings) -> int:
    """Fetch papers, and say for which jobs."""
    try:
        from shoal_edge_client.prepare import prepare
    except ModuleNotFoundError as error:
        raise not_installed(error, "peer", "--prepare") from None
    from datetime import UTC, datetime

    ready = prepare(settings)
    rows = [
        (one.job, f"from version {one.version}, until {datetime.fromtimestamp(one.until, UTC):%Y-%m-%d}")
        for one in ready
    ]
    shown = pairs(rows) if rows else "no job that its nodes may carry on by themselves"
    out.answer({"url": settings.url, "name": settings.node, "ready": [asdict(one) for one in ready]}, shown)
    return 0
