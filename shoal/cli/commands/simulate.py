"""`shoal simulate`: a job in this process, on a virtual clock."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from shoal.cli.process.signals import Interrupted
from shoal.cli.terminal.options import Changes, ComparisonOptions, JobFile, ModelOutput, Presets, spread
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import is_curve_point, number, pairs, percent, safe, seconds, size, table
from shoal.core.errors import InvalidJob, ShoalError, StorageFailed
from shoal.core.errors.phrases import counted
from shoal.core.scheduling.selection import join_names

if TYPE_CHECKING:
    from rich.table import Table

    from shoal.core.algorithm.learner import Learner
    from shoal.jobs.spec import JobSpec
    from shoal.results.result import Fidelity, Result
    from shoal.sim.network.faults import Faults

NODES = 4
LEARNERS_KEPT = 100
"""Nodes up to which all learners are made before the job starts. Those of more nodes, or in several processes, are made
for each task, so that memory holds a few of them."""
ROWS_MAX = 12
FAULTS_S = 1e9
"""Virtual seconds that faults go on when nothing is said: as long as any job."""


@dataclass(frozen=True)
class SimulationOptions:
    """Options for nodes, faults, processes and threads."""

    learner: Annotated[
        str | None, typer.Option(help="your model and data: FILE.py:NAME (default: the job's)", show_default=False)
    ] = None
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, help="number of nodes (default: min_nodes, if the job's schedule sets it, or 4)", show_default=False
        ),
    ] = None
    fault: Annotated[
        list[str] | None,
        typer.Option(
            "--faults",
            metavar="KEY=VALUE",
            help="repeatable: message_loss, message_duplicates (fractions), delay_s (mean), coordinator_crashes, "
            "node_crashes (numbers), disk_survival (fraction), until_s (end of all faults)",
            show_default=False,
        ),
    ] = None
    fault_seed: Annotated[
        int | None, typer.Option(min=0, help="seed of the faults alone (default: the job's)", show_default=False)
    ] = None
    workers: Annotated[
        int,
        typer.Option(min=1, help="processes that train: the same result, but each takes seconds to start"),
    ] = 1
    fidelity: Annotated[
        str | None,
        typer.Option(
            help="lean: fast, in memory; wire: messages as bytes, journal, disks and crashes too, as --faults needs "
            "(default: lean without --faults); both count the same bytes",
            show_default=False,
        ),
    ] = None
    threads: Annotated[int, typer.Option(min=1, help="threads of each process; 1 is fastest for small models")] = 1
    device: Annotated[
        str,
        typer.Option(
            help="where all learners compute: cpu, cuda, cuda:1 or mps (default: their own choice)", show_default=False
        ),
    ] = ""
    evaluate_every: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="evaluate each N-th version and the last one on the job's held-out data"),
    ] = 1


@spread
def simulate(
    file: JobFile,
    *,
    here: SimulationOptions,
    change: Changes = None,
    output: ModelOutput = None,
    record: Annotated[
        Path | None,
        typer.Option(help="write the run to this file, for shoal compare (JSON)", show_default=False),
    ] = None,
    compare: Presets = None,
    judged: ComparisonOptions,
) -> None:
    """Simulate a job on this machine: coordinator and nodes on a virtual clock, with real training.

    Example: shoal simulate digits.toml --nodes 10 --faults message_loss=0.1

    Each node has its own learner, made with the options part=0, 1, … and parts=NODES if it accepts them. With more than
    100 nodes or with --workers, a new learner is made for each task.

    With --compare the job is run under each of the presets, with the same seed.
    """
    from shoal.cli.commands.compare import specs_under
    from shoal.cli.commands.data import share_cache
    from shoal.cli.terminal.values import job_of

    spec, values = job_of(file, change or [])
    faults_of(here.fault)  # report errors in them before loading anything
    if compare is not None and output is not None:
        raise ShoalError(
            "--output writes one model, --compare makes several", code="usage.invalid", hint="use --record"
        )
    for path in (output, record):
        if path is not None and not path.absolute().parent.is_dir():
            text, hint = f"{path}: No such file or directory", "make the folder, or choose another one"
            raise StorageFailed(text, code="export.failed", hint=hint)
    share_cache()
    os.environ["OMP_NUM_THREADS"] = str(here.threads)  # read when torch is loaded, which no command does before
    if compare is not None:
        compared({preset: one for preset, (one, _) in specs_under(values, compare).items()}, here, record, judged)
        return
    started = time.monotonic()
    result = run(spec, here)
    report(result, time.monotonic() - started)  # first: it must not be lost where the disk is full
    if record is not None:
        keep(spec, result, record)
    if output is not None:
        result.save(output)
        result.save_checkpoints(output)
    end_if_interrupted(result)


def end_if_interrupted(result: Result) -> None:
    """Raise `Interrupted` for a simulation that an interrupt has ended early."""
    if result.state == "interrupted":
        made = counted(max(0, len(result.versions) - 1), "version")
        raise Interrupted(f"interrupted; the result is that of {made}")


def run(spec: JobSpec, here: SimulationOptions) -> Result:
    """Run one job with new learners and a progress bar."""
    from shoal.simulation import simulate as run_job

    count = here.nodes or int(spec.schedule.get("min_nodes", 0)) or NODES
    kept = here.workers == 1 and count <= LEARNERS_KEPT
    learners = load(here.learner or spec.learner, spec.options, count, kept=kept)
    with out.progress(spec.name, 1.0) as advance:

        def show_progress(share: float, text: str) -> None:
            advance(share, f"{share:.0%}", text)

        return run_job(
            spec,
            learners,
            nodes=count if callable(learners) else 0,
            workers=here.workers,
            threads=here.threads,
            device=here.device,
            faults=faults_of(here.fault),
            fidelity=cast("Fidelity | None", here.fidelity),
            fault_seed=here.fault_seed,
            progress=show_progress,
            held_out=held_out_learner(spec),
            evaluate_every=here.evaluate_every,
        )


def compared(
    specs: Mapping[str, JobSpec], here: SimulationOptions, record: Path | None, judged: ComparisonOptions
) -> None:
    """Run a job under several presets and print the comparison."""
    from shoal.cli.commands.compare import answer
    from shoal.results.run_record import record_of_simulation

    records, results = {}, {}
    for preset, spec in specs.items():
        results[preset] = result = run(spec, here)
        records[preset] = record_of_simulation(spec, result)
        if record is not None:
            keep(spec, result, record.with_stem(f"{record.stem}-{preset}"))
        if result.state == "interrupted":
            break
    answer(records, judged)
    for result in results.values():
        end_if_interrupted(result)


def keep(spec: JobSpec, result: Result, path: Path) -> None:
    """Write the record of a run."""
    from shoal.cli.commands.compare import write
    from shoal.results.run_record import record_of_simulation

    write(record_of_simulation(spec, result), path)


def faults_of(given: Sequence[str] | None) -> Faults | None:
    """Parse options --faults. Raises `ShoalError` for an unknown fault."""
    from shoal.cli.terminal.values import assignments
    from shoal.plugins import suggestion
    from shoal.sim.network.faults import Faults

    if not given:
        return None
    values = assignments(given, "--faults")
    known = {field.name: field.type for field in fields(Faults) if field.name != "cuts"}
    for key, value in values.items():
        if key not in known:
            raise ShoalError(f"--faults {key}: no such fault", code="usage.name", hint=suggestion(key, known))
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ShoalError(f"--faults {key}={value}: not a number of 0 or more", code="usage.invalid")
    return Faults(**{"until_s": FAULTS_S, **values})


def load(
    target: str, options: Mapping[str, Any], nodes: int, *, kept: bool
) -> list[Learner] | Callable[[int], Learner]:
    """Return one learner per node, or what makes them. Raises `InvalidJob` or `LearnerFailed`."""
    from shoal.learn.loading import accepted

    if not target:
        hint = 'add --learner FILE.py:NAME, or write learner = "FILE.py:NAME" into the job file'
        raise InvalidJob("the job names no learner", code="learner.missing", hint=hint)
    taken = accepted(target, ("part", "parts"))
    if "part" in options and "part" in taken and nodes > 1:
        raise InvalidJob(
            f"the job says options.part = {options['part']}: all {nodes} nodes would have the same data",
            code="learner.options",
            hint="leave it out: a simulation gives each node a part of its own",
        )
    if "part" not in taken and nodes > 1:
        out.warn(f"{target} takes no option part: every node has the same data")

    given = ({"parts": nodes} if "parts" in taken else {}) | dict(options)
    make = partial(part_learner, target, given, "part" in taken)
    if not kept:
        return make
    found: list[Learner] = []
    with out.progress("loading", nodes) as advance:
        for part in range(nodes):
            advance(part, f"{part} of {nodes} learners")
            found.append(make(part))
    return found


def part_learner(target: str, options: Mapping[str, Any], takes_part: bool, part: int) -> Learner:
    """Return a node's learner, in whichever process."""
    from shoal.learn.loading import load_learner

    return unpaced(load_learner(target, {"part": part, **options} if takes_part else options))


def unpaced(learner: Learner) -> Learner:
    """Return a learner whose stream does not wait: time is virtual here."""
    if "shoal.learn.training.torch_learner" in sys.modules:  # else it is none of them, and torch need not be there
        from shoal.learn import TorchLearner

        if isinstance(learner, TorchLearner):
            learner.use(paced=False)
    return learner


def held_out_learner(spec: JobSpec) -> Learner | None:
    """Return the learner for held-out data, if the job names one."""
    from shoal.learn.loading import load_learner

    return None if spec.held_out is None else load_learner(spec.held_out.learner, spec.held_out.options)


def report(result: Result, took_s: float) -> None:
    """Print the result."""
    up, down = sum(result.up_bytes.values()), sum(result.down_bytes.values())
    data: dict[str, Any] = {
        "job": result.name,
        "state": result.state,
        "metrics": result.metrics,
        "versions": [asdict(version) for version in result.versions],
        "up_bytes": up,
        "down_bytes": down,
        "uncounted": result.uncounted,
        "fidelity": result.fidelity,
        "training": result.training,
        "virtual_s": result.versions[-1].closed_s if result.versions else 0.0,
        "wall_s": took_s,
    }
    rows: list[tuple[str, Any]] = [
        (name, percent(value) if name.endswith("accuracy") else number(value))
        for name, value in sorted(data["metrics"].items())
        if not is_curve_point(name)
    ]
    if result.uncounted:
        nodes = counted(len(result.uncounted), "node")
        rows += [("never counted", f"[yellow]{nodes}: {safe(join_names(result.uncounted))}[/]")]
    rows += [("bytes", f"{size(up)} up, {size(down)} down (frames and blobs, without HTTP)")]
    if result.training:
        rows += [("training", safe(result.training))]
    rows += [("time", f"{seconds(took_s)} here, {seconds(data['virtual_s'])} of the simulated clock")]
    out.answer(data, round_table(result), pairs(rows))


def round_table(result: Result) -> Table:
    """Return a table of versions, evenly spaced, with the last one."""
    columns, cells = result.table(ROWS_MAX)
    rows = table(*columns, right=columns)
    for row in cells:
        rows.add_row(*row)
    return rows
