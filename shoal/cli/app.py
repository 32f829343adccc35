"""The tree of commands. The module of a command is imported when that command or its help is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.lazy import Entry
from shoal.cli.process.program import Program
from shoal.cli.terminal.output import Flags, out

START, HERE, THERE, ALONE = "First steps", "Processes", "Commands to a coordinator", "On this machine"

COMMANDS = (
    Entry(
        "demo",
        "shoal.cli.demos.demo:demo",
        START,
        "Train on handwritten digits with a coordinator, four edge clients and the dashboard on this machine.",
    ),
    Entry(
        "new",
        "shoal.cli.commands.new:new",
        START,
        "Make a project: job file, learner and README, copied from an example.",
    ),
    Entry(
        "doctor",
        "shoal.cli.commands.doctor:doctor",
        START,
        "Check this machine and the coordinator, and suggest fixes.",
    ),
    Entry(
        "coordinator",
        "shoal.cli.commands.coordinator:coordinator",
        HERE,
        "Start a coordinator and serve until Ctrl-C.",
    ),
    Entry(
        "join",
        "shoal.cli.commands.join:join",
        HERE,
        "Join a coordinator as a node: train on this machine's data until Ctrl-C.",
    ),
    Entry(
        "trainer",
        "shoal.cli.commands.trainer:trainer",
        HERE,
        "Train for a node whose trainer_command runs this on a machine of a batch scheduler.",
    ),
    Entry(
        "conformance",
        "shoal.cli.commands.conformance:conformance",
        HERE,
        "Test edge clients of any language: run jobs whose results are known to the bit.",
    ),
    Entry(
        "run",
        "shoal.cli.commands.run:run",
        THERE,
        "Submit a job to a coordinator and watch its rounds, accuracy, bytes and decisions.",
    ),
    Entry(
        "switch",
        "shoal.cli.commands.switch:switch",
        THERE,
        "Switch a running job to mode gossip (its nodes continue as peers) or back to mode server.",
    ),
    Entry(
        "failures",
        "shoal.cli.failures:failures",
        THERE,
        "List failed tasks, newest first: node, progress, error, and what the coordinator did about it.",
    ),
    Entry(
        "logs",
        "shoal.cli.commands.logs:logs",
        THERE,
        "Show logs of nodes and the coordinator, oldest first. With --follow and --json: one JSON object per batch.",
    ),
    Entry(
        "alerts",
        "shoal.cli.commands.alerts:alerts",
        THERE,
        "List alerts: lost nodes, missed quorums, diverged or stalled jobs, a disk that is almost full.",
    ),
    Entry(
        "models",
        "shoal.cli.commands.models:models",
        THERE,
        "List a job's models, newest first: size, hash, metrics and labels.",
    ),
    Entry(
        "promote",
        "shoal.cli.commands.models:promote",
        THERE,
        'Move a label ("production" unless another is named) to a version.',
    ),
    Entry(
        "demote",
        "shoal.cli.commands.models:demote",
        THERE,
        "Remove a label. The coordinator may then delete that model as it does other old ones.",
    ),
    Entry(
        "export",
        "shoal.cli.commands.export:export",
        THERE,
        "Download a job's model (safetensors, with its SHA-256 checked), its metrics, or the record of its run.",
    ),
    Entry(
        "serve",
        "shoal.cli.commands.serve:serve",
        THERE,
        "Answer from a trained model over HTTP until Ctrl-C. A label that moves takes effect within seconds.",
    ),
    Entry(
        "infer",
        "shoal.cli.commands.infer:infer",
        THERE,
        "Measure the levels of a network with exits: how often each answers, how many bytes, how accurate.",
    ),
    Entry(
        "restore",
        "shoal.cli.commands.restore:restore",
        THERE,
        "Restore jobs at a coordinator that has lost its disk, from the checkpoints that nodes keep.",
    ),
    Entry(
        "compare",
        "shoal.cli.commands.compare:compare",
        THERE,
        "Compare runs: accuracy, bytes, synchronizations, and the cost to reach a target.",
    ),
    Entry(
        "simulate",
        "shoal.cli.commands.simulate:simulate",
        ALONE,
        "Simulate a job on this machine: coordinator and nodes on a virtual clock, with real training.",
    ),
    Entry(
        "algorithms",
        "shoal.cli.commands.algorithms:algorithms",
        ALONE,
        "List algorithms, schedules, filters, selections and mixings, or show the fields of one.",
    ),
    Entry(
        "jobs",
        "shoal.cli.commands.clone:app",
        THERE,
        "Jobs at a coordinator: list, show, peers, pause, resume, stop, set, clone, tag, remove.",
    ),
    Entry(
        "nodes",
        "shoal.cli.commands.nodes:app",
        THERE,
        "Nodes at a coordinator: list, drain, block, activate, remove.",
    ),
    Entry("token", "shoal.cli.commands.tokens:app", THERE, "Tokens for nodes and people: create, list, revoke."),
    Entry(
        "peer",
        "shoal.cli.commands.peer_join:app",
        ALONE,
        "Jobs among peers without a coordinator: start, join, invite, run, status, export.",
    ),
    Entry("data", "shoal.cli.commands.data:app", ALONE, "Data sets: list, get."),
    Entry("config", "shoal.cli.commands.config:app", ALONE, "Settings: show."),
)
"""All commands in the order of the help; the last text equals the first paragraph of the command's docstring."""


class Shoal(Program):
    """The root of the command line."""

    entries = COMMANDS


app = typer.Typer(
    cls=Shoal,
    name="shoal",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 connection or credential, 4 time-out, 130 Ctrl-C.",
)


def show_version(wanted: bool) -> None:
    """Print the installed versions, without importing the packages, and exit."""
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
    system, machine = platform.system(), platform.machine()
    data = {"shoal": __version__, "python": python, "torch": torch, "platform": f"{system} {machine}"}
    out.answer(data, f"shoal {__version__} (Python {python}, torch {torch}, {system} {machine})")
    raise typer.Exit


@app.callback()
def shoal(
    json: Annotated[
        bool, typer.Option("--json", help="print one JSON object on stdout, and nothing else there")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print results and errors only")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="print more, on stderr")] = False,
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="settings file (TOML)", show_default=False)
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback acts
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="print versions and exit")
    ] = False,
) -> None:
    """Train one deep model on many machines that keep their data.

    These options may also follow a command: shoal jobs list --json
    """
    out.begin(Flags(json, quiet, verbose, config_file))
