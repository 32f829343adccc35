"""`shoal join`: an edge client on this machine."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli.data import share_cache
from shoal.cli.options import Device, Precision, spread
from shoal.cli.output import out
from shoal.cli.values import assignments


@dataclass(frozen=True)
class Machine:
    """What it computes with."""

    device: Device = None
    precision: Precision = None


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
    from edge_client.running import run
    from edge_client.settings import EdgeSettings
    from shoal.settings import load

    secret = sys.stdin.readline().strip() if token == "-" else token  # noqa: S105 - a dash is no secret
    given: dict[str, Any] = {
        "url": url,
        "learner": learner,
        "token": secret,
        "name": name,
    }
    given |= {"state": state, "options": assignments(option, "--option") if option else None}
    given |= asdict(machine) | asdict(peering)
    given["log_level"] = "debug" if out.flags.verbose else "warning" if out.flags.quiet else None
    settings = load(EdgeSettings, "edge", config=out.flags.config, given=given)
    share_cache()
    code = run(settings)
    if code == 0:
        out.answer({"url": settings.url, "name": settings.node, "left": True})
    return code
