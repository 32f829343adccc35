"""`shoal join`: an edge client on this machine."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.commands.data import share_cache
from shoal.cli.terminal.options import Device, Precision, spread
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import pairs
from shoal.cli.terminal.values import plain_assignments
from shoal.extras import not_installed

if TYPE_CHECKING:
    from shoal_edge_client.settings import EdgeSettings


@dataclass(frozen=True)
class MachineOptions:
    """Device, processes, state folder, tags and split job of this node."""

    device: Device = None
    precision: Precision = None
    trainer: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="where the learner trains: thread, process or command (default: process with --peer-listen, else "
            "thread)",
            show_default=False,
        ),
    ] = None
    trainer_command: Annotated[
        str | None,
        typer.Option(
            metavar="SHELL",
            help='with --trainer command: has a training process started, such as "sbatch train.sh"',
            show_default=False,
        ),
    ] = None
    processes: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="processes of this machine that train together as one node", show_default=False
        ),
    ] = None
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="tag by which jobs select nodes; repeatable", show_default=False),
    ] = None
    hours: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HH:MM-HH:MM", help="hours at which this node gets tasks, in UTC; repeatable", show_default=False
        ),
    ] = None
    split_job: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="take part in this split job alone, and end with it", show_default=False),
    ] = None
    state_dir: Annotated[
        Path | None,
        typer.Option(
            help="folder to keep: credential and unsent reports (default: ~/.local/state/shoal/NAME)",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True)
class PeeringOptions:
    """Options of this node as a peer."""

    peer_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="continue jobs with other nodes if the coordinator fails: address to listen on, or none to only "
            "connect to others",
            show_default=False,
        ),
    ] = None
    peer_url: Annotated[
        str | None, typer.Option(metavar="URL", help="address at which other nodes reach this one", show_default=False)
    ] = None
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="fetch what is needed to enter jobs later without the coordinator, and exit"),
    ] = False
    peer_bytes_per_hour: Annotated[
        float | None,
        typer.Option(metavar="BYTES", min=0, help="limit of bytes per hour between peers, per job", show_default=False),
    ] = None


@spread
def join(
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="address of the coordinator; else SHOAL_EDGE__URL", show_default=False),
    ] = None,
    *,
    learner: Annotated[
        str | None,
        typer.Option(
            help="your model, data and training code, required: FILE.py:NAME or PACKAGE.MODULE:NAME", show_default=False
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(help="one-time token (sht_…), needed the first time; - reads it from stdin", show_default=False),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="option of the learner; repeatable", show_default=False),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="name of this node (default: the machine's)", show_default=False)
    ] = None,
    machine: MachineOptions,
    peering: PeeringOptions,
) -> int:
    """Join a coordinator as a node: train on this machine's data until Ctrl-C.

    Example: shoal join http://host:8080 --token sht_… --learner mine.py:learner --option part=0

    Data and code stay on this machine. Models, updates, metrics, logs and errors are sent. Ctrl-C leaves gracefully, a
    second one at once.
    """
    from shoal.configuration import load
    from shoal_edge_client.process import run
    from shoal_edge_client.settings import EdgeSettings

    secret = sys.stdin.readline().strip() if token == "-" else token  # noqa: S105 - a dash is not a secret
    given: dict[str, Any] = {
        "url": url,
        "learner": learner,
        "token": secret,
        "name": name,
    }
    given["options"] = plain_assignments(option, "--option") if option else None
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
    """Fetch the trust documents of jobs, and print the jobs."""
    try:
        from shoal_edge_client.prepare import prepare
    except ModuleNotFoundError as error:
        raise not_installed(error, "peer", "--prepare") from None
    from datetime import UTC, datetime

    ready = prepare(settings)
    rows = [
        (one.job, f"from version {one.version}, until {datetime.fromtimestamp(one.expires_at, UTC):%Y-%m-%d}")
        for one in ready
    ]
    shown = pairs(rows) if rows else "no job with gossip.allowed"
    out.answer({"url": settings.url, "name": settings.node, "ready": [asdict(one) for one in ready]}, shown)
    return 0
