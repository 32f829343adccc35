"""The tree of commands. A command's module is imported when the command is run, or asked about."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.lazy import Entry
from shoal.cli.output import Flags, out
from shoal.cli.program import Program

START, HERE, THERE, ALONE = "To begin with", "Processes", "At a coordinator", "Without one"

COMMANDS = (
    Entry(
        "demo",
        "shoal.cli.demo:demo",
        START,
        "Train on handwritten digits with a coordinator and four edge clients on this machine, live in the browser.",
    ),
    Entry(
        "doctor",
        "shoal.cli.doctor:doctor",
        START,
        "Look at this machine and the coordinator, and say how to mend what isn't right.",
    ),
    Entry("coordinator", "shoal.cli.coordinator:coordinator", HERE, "Start a coordinator, and serve until Ctrl-C."),
    Entry(
        "join",
        "shoal.cli.join:join",
        HERE,
        "Train on this machine's data for a coordinator, until its jobs have ended or Ctrl-C.",
    ),
    Entry(
        "run",
        "shoal.cli.run:run",
        THERE,
        "Submit a job to a coordinator and watch it: rounds, accuracy, bytes, decisions.",
    ),
    Entry(
        "switch",
        "shoal.cli.switch:switch",
        THERE,
        "Let the nodes carry a running job on without the coordinator, or have them hand it back.",
    ),
    Entry(
        "peers",
        "shoal.cli.peers:peers",
        THERE,
        "Show how a job's nodes do as each other's peers, while they carry it on without the coordinator.",
    ),
    Entry(
        "failures",
        "shoal.cli.failures:failures",
        THERE,
        "Show what nodes could not do: who, how far they were, why, and what was done about it. Newest first.",
    ),
    Entry(
        "logs",
        "shoal.cli.logs:logs",
        THERE,
        "Show what nodes and the coordinator log, oldest first. With --follow and --json: an envelope for each batch.",
    ),
    Entry(
        "alerts",
        "shoal.cli.alerts:alerts",
        THERE,
        "Show alerts: nodes that were lost, quorums missed, runs that diverged or stand still, a disk that is low.",
    ),
    Entry(
        "models",
        "shoal.cli.models:models",
        THERE,
        "List a job's models, newest first: size, hash, how good, and what they are called.",
    ),
    Entry(
        "promote",
        "shoal.cli.models:promote",
        THERE,
        'Call a version "production" (or something else), instead of the one that is called so now.',
    ),
    Entry(
        "demote", "shoal.cli.models:demote", THERE, "Take a label away; its model is then kept as long as any other."
    ),
    Entry(
        "export",
        "shoal.cli.export:export",
        THERE,
        "Download a job's model (safetensors, its SHA-256 checked), its metrics, or all of the run.",
    ),
    Entry(
        "rebuild",
        "shoal.cli.rebuild:rebuild",
        THERE,
        "Begin jobs again at a coordinator with an empty disk, from what nodes have kept of them.",
    ),
    Entry(
        "compare",
        "shoal.cli.compare:compare",
        THERE,
        "Compare runs: accuracy, bytes and synchronisations, and what it cost to reach a target.",
    ),
    Entry(
        "simulate",
        "shoal.cli.simulate:simulate",
        ALONE,
        "Run a job without a network: the real coordinator, clients and learners, on a virtual clock.",
    ),
    Entry(
        "algorithms",
        "shoal.cli.algorithms:algorithms",
        ALONE,
        "List algorithms, schedules, filters, selections and ways of mixing; one of them with its fields and defaults.",
    ),
    Entry(
        "jobs",
        "shoal.cli.clone:app",
        THERE,
        "Jobs at a coordinator: list, show, pause, resume, stop, set, clone, tag, remove.",
    ),
    Entry(
        "nodes",
        "shoal.cli.nodes:app",
        THERE,
        "Edge clients that a coordinator knows: list, drain, block, activate, remove.",
    ),
    Entry("token", "shoal.cli.tokens:app", THERE, "Tokens for nodes and people: create, list, revoke."),
    Entry("peer", "shoal.cli.peer_join:app", ALONE, "A job that its peers run by themselves, with no server."),
    Entry("data", "shoal.cli.data:app", ALONE, "Data sets: list, get."),
    Entry("config", "shoal.cli.config:app", ALONE, "Settings: show."),
)
"""All commands, in the order of the help; the last text is the first paragraph of what each says of itself."""


class Shoal(Program):
    """The root of the command line, with its commands."""

    entries = COMMANDS


app = typer.Typer(
    cls=Shoal,
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
