"""The tree of commands. Modules here are cheap to import; what a command needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import config, data, jobs, nodes, peer, peer_join, tokens
from shoal.cli.alerts import alerts
from shoal.cli.algorithms import algorithms
from shoal.cli.compare import compare
from shoal.cli.coordinator import coordinator
from shoal.cli.demo import demo
from shoal.cli.doctor import doctor
from shoal.cli.export import export
from shoal.cli.failures import failures
from shoal.cli.join import join
from shoal.cli.logs import logs
from shoal.cli.models import demote, models, promote
from shoal.cli.output import Flags, out
from shoal.cli.peers import peers
from shoal.cli.program import Program
from shoal.cli.rebuild import rebuild
from shoal.cli.run import run
from shoal.cli.simulate import simulate
from shoal.cli.switch import switch

START, HERE, THERE, ALONE = "To begin with", "Processes", "At a coordinator", "Without one"

app = typer.Typer(
    cls=Program,
    name="shoal",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 job or server, 2 usage, 3 connection or credential, 4 time-out, 130 Ctrl-C.",
)


def show_version(wanted: bool) -> None:
    """Print what is installed, without importing it, and exit."""
    if not wanted:
        return
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    from shoal import __version__

    try:
        torch = installed("torch")
    except PackageNotFoundError:
        torch = "not installed"
    python = platform.python_version()
    data = {"shoal": __version__, "python": python, "torch": torch, "platform": platform.platform()}
    out.answer(data, f"shoal {__version__} (Python {python}, torch {torch}, {platform.system()} {platform.machine()})")
    raise typer.Exit


@app.callback()
def shoal(
    json: Annotated[
        bool, typer.Option("--json", help="print one JSON envelope on stdout, and nothing else there")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print results and errors only")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="say more, on stderr")] = False,
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="settings to read (TOML)", show_default=False)
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback acts
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="print versions and exit")
    ] = False,
) -> None:
    """Train one deep model over many machines that keep their data to themselves.

    The options below may stand anywhere: shoal jobs list --json
    """
    out.begin(Flags(json, quiet, verbose, config_file))


for command, panel in (
    (demo, START),
    (doctor, START),
    (coordinator, HERE),
    (join, HERE),
    (run, THERE),
    (switch, THERE),
    (peers, THERE),
    (failures, THERE),
    (logs, THERE),
    (alerts, THERE),
    (models, THERE),
    (promote, THERE),
    (demote, THERE),
    (export, THERE),
    (rebuild, THERE),
    (compare, THERE),
    (simulate, ALONE),
    (algorithms, ALONE),
):
    app.command(rich_help_panel=panel)(command)
for peer_command in (peer_join.start, peer_join.join, peer_join.invite):
    peer.app.command()(peer_command)
for group, name, panel in (
    (jobs.app, "jobs", THERE),
    (nodes.app, "nodes", THERE),
    (tokens.app, "token", THERE),
    (peer.app, "peer", ALONE),
    (data.app, "data", ALONE),
    (config.app, "config", ALONE),
):
    app.add_typer(group, name=name, rich_help_panel=panel)
