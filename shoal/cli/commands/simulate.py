"""`shoal simulate`: a whole job in this process, on a virtual clock."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.options import JobFile, Judged, Presets, spread
from shoal.cli.output import out
from shoal.cli.text import number, pairs, percent, safe, seconds, size, table
from shoal.core.errors import InvalidJob, ShoalError
from shoal.core.selection import listed
from shoal.core.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from shoal.core.learner import Learner
    from shoal.result import Result
    from shoal.sim.faults import Faults
    from shoal.spec import JobSpec

NODES = 4
ROWS_MAX = 12
FAULTS_S = 1e9
"""Virtual seconds that faults go on when nothing is said: as long as any job."""


@dataclass(frozen=True)
class Here:
    """Who takes part, and under which conditions."""

    learner: Annotated[
        str | None, typer.Option(help="your model and data: FILE.py:NAME; else the job's", show_default=False)
    ] = None
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="how many nodes (default: min_nodes of the job's schedule, or 4)", show_default=False),
    ] = None
    fault: Annotated[
        list[str] | None,
        typer.Option(
            "--faults",
            metavar="KEY=VALUE",
            help="what goes wrong: loss, duplicate, delay_s, hub_crashes, node_crashes, keep, until_s",
            show_default=False,
        ),
    ] = None
    seed: Annotated[int | None, typer.Option(min=0, help="of the faults (default: the job's)", show_default=False)] = (
        None
    )
    threads: Annotated[int, typer.Option(min=1, help="threads to compute with; small models are quickest with 1")] = 1


@spread
def simulate(
    file: JobFile,
    *,
    here: Here,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="another value, e.g. algorithm.lr=0.05", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="write the final model there (safetensors)", show_default=False),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="write the run there, for shoal compare (JSON)", show_default=False),
    ] = None,
    compare: Presets = None,
    judged: Judged,
) -> None:
    """Run a job without a network: the real coordinator, clients and learners, on a virtual clock.

    Example: shoal simulate digits.toml --nodes 10 --faults loss=0.1 --faults hub_crashes=2

    The job's learner is made once per node, with the options part=0, 1, … and parts=NODES, each if it takes it. With
    --compare the job is run under each of the presets, one after the other, with the same seed.
    """
    from shoal.cli.compare import specs_under
    from shoal.cli.data import share_cache
    from shoal.cli.values import job_of

    spec, values = job_of(file, change or [])
    faults_of(here.fault)  # what is wrong with them is said before anything is loaded
    if compare is not None and output is not None:
        raise ShoalError(
            "--output writes one model, --compare makes several", code="usage.invalid", hint="use --record"
        )
    share_cache()
    os.environ["OMP_NUM_THREADS"] = str(here.threads)  # read when torch is loaded, which no command does before
    if compare is not None:
        compared({preset: one for preset, (one, _) in specs_under(values, compare).items()}, here, record, judged)
        return
    started = time.monotonic()
    result = run(spec, here)
    if output is not None:
        result.save(output)
    if record is not None:
        keep(spec, result, record)
    report(result, time.monotonic() - started)


def run(spec: JobSpec, here: Here) -> Result:
    """One job from its beginning to its end, with fresh learners and a bar."""
    from shoal.simulation import simulate as run_job

    count = here.nodes or int(spec.schedule.get("min_nodes", 0)) or NODES
    learners = load(here.learner or spec.learner, spec.options, count)
    with out.progress(spec.name, 1.0) as advance:

        def tell(share: float, text: str) -> None:
            advance(share, f"{share:.0%}", text)

        return run_job(
            spec, learners, faults=faults_of(here.fault), seed=here.seed, progress=tell, held_out=judge_of(spec)
        )


def compared(specs: Mapping[str, JobSpec], here: Here, record: Path | None, judged: Judged) -> None:
    """The same job under several presets, one after the other, and the table."""
    from shoal.cli.compare import answer
    from shoal.record import of_simulation

    records = {}
    for preset, spec in specs.items():
        result = run(spec, here)
        records[preset] = of_simulation(spec, result)
        if record is not None:
            keep(spec, result, record.with_stem(f"{record.stem}-{preset}"))
    answer(records, judged)


def keep(spec: JobSpec, result: Result, path: Path) -> None:
    """Write the record of a run."""
    from shoal.cli.compare import write
    from shoal.record import of_simulation

    write(of_simulation(spec, result), path)


def faults_of(given: Sequence[str] | None) -> Faults | None:
    """What `--faults` says. Raises `ShoalError` for a fault that nobody knows."""
    from shoal.cli.values import assignments
    from shoal.plugins import suggestion
    from shoal.sim.faults import Faults

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


def load(target: str, options: Mapping[str, Any], nodes: int) -> list[Learner]:
    """The learner, once per node. Raises `InvalidJob` or `LearnerFailed`."""
    from shoal.learn.loading import accepted, load_learner

    if not target:
        hint = 'say --learner FILE.py:NAME, or write learner = "FILE.py:NAME" into the job file'
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
    found: list[Learner] = []
    with out.progress("loading", nodes) as advance:
        for part in range(nodes):
            advance(part, f"{part} of {nodes} learners")
            numbers = {"part": part, "parts": nodes}
            given = {name: number for name, number in numbers.items() if name in taken}
            found.append(unpaced(load_learner(target, {**given, **options})))
    return found


def unpaced(learner: Learner) -> Learner:
    """A learner that does not wait for its data: here time is virtual."""
    if "shoal.learn.torch_learner" in sys.modules:  # else it is none of them, and torch need not be there
        from shoal.learn import TorchLearner

        if isinstance(learner, TorchLearner):
            learner.use(paced=False)
    return learner


def judge_of(spec: JobSpec) -> Learner | None:
    """The learner with data that no node has, where the job names one."""
    from shoal.learn.loading import load_learner

    return None if spec.held_out is None else load_learner(spec.held_out.learner, spec.held_out.options)


def report(result: Result, took_s: float) -> None:
    """Tables, or all of it for programs."""
    up, down = sum(result.up_bytes.values()), sum(result.down_bytes.values())
    data: dict[str, Any] = {
        "job": result.name,
        "state": result.state,
        "metrics": result.metrics,
        "versions": [asdict(version) for version in result.versions],
        "up_bytes": up,
        "down_bytes": down,
        "uncounted": result.uncounted,
        "virtual_s": result.versions[-1].closed if result.versions else 0.0,
        "wall_s": took_s,
    }
    rows: list[tuple[str, Any]] = [
        (name, percent(value) if name.endswith("accuracy") else number(value))
        for name, value in sorted(data["metrics"].items())
    ]
    if result.uncounted:
        nodes = counted(len(result.uncounted), "node")
        rows += [("never counted", f"[yellow]{nodes}: {safe(listed(result.uncounted))}[/]")]
    rows += [("bytes", f"{size(up)} up, {size(down)} down (frames and bodies, without HTTP)")]
    rows += [("time", f"{seconds(took_s)} here, {seconds(data['virtual_s'])} of the simulated clock")]
    out.answer(data, round_table(result), pairs(rows))


def round_table(result: Result) -> Table:
    """Some versions, evenly over the job, the last one among them."""
    columns, cells = result.table(ROWS_MAX)
    rows = table(*columns, right=columns)
    for row in cells:
        rows.add_row(*row)
    return rows
