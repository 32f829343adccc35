"""`shoal compare`: a table of several runs, and its parts for other commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.terminal.options import ComparisonOptions, Token, Url, spread
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import number, percent, seconds, size, table
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from rich.table import Table

    from shoal.client.api import CoordinatorApi
    from shoal.jobs.spec import JobSpec
    from shoal.results.compare import Comparison
    from shoal.results.run_record import RunRecord

Runs = Annotated[
    list[str], typer.Argument(metavar="RUN…", help="jobs at the coordinator, or files of runs", show_default=False)
]


@spread
def compare(runs: Runs, *, judged: ComparisonOptions, url: Url = None, token: Token = None) -> None:
    """Compare runs: accuracy, bytes, synchronizations, and the cost to reach a target.

    Example: shoal compare digits-fedavg digits-fedsgd old/digits.json --target 0.95 --by node

    A run is the name of a job at the coordinator, or a file that shoal simulate or shoal export wrote with
    --record.
    """
    answer(found(runs, url, token), judged)


def found(names: Sequence[str], url: str | None, token: str | None) -> dict[str, RunRecord]:
    """Return the records of runs by name. Raises `ShoalError` for an unknown run."""
    from shoal.cli.connection import connect

    records: dict[str, RunRecord] = {}
    with ExitStack() as stack:
        api = None
        for name in dict.fromkeys(names):
            if name.endswith(".json") or "/" in name or Path(name).is_file():
                record, label = read(Path(name)), Path(name).stem
            else:
                api = api or stack.enter_context(connect(url, token))
                record, label = fetch(api, name), name
            records[label if label not in records else name] = record
    return records


def read(path: Path) -> RunRecord:
    """Read a run from a file."""
    from shoal.results.run_record import load_record

    try:
        return load_record(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise ShoalError(
            f"{path}: {why}", code="usage.file", hint="name a job, or a file that --record has written"
        ) from None


def fetch(api: CoordinatorApi, job: str) -> RunRecord:
    """Fetch a run from the coordinator."""
    from shoal.client.api import segment
    from shoal.results.run_record import record_of_job

    path = f"/jobs/{segment(job)}"
    versions = api.get(f"{path}/versions", points=0)["versions"]
    return record_of_job(api.get(path), versions, api.get(f"{path}/traffic", by=["version", "node", "kind"]))


def write(record: RunRecord, path: Path) -> None:
    """Write a run to a file. Raises `ShoalError`."""
    from shoal.results.run_record import dump_record

    try:
        path.write_text(dump_record(record), encoding="utf-8")
    except OSError as error:
        raise ShoalError(
            f"{path}: {error.strerror}", code="export.failed", hint="check folder and free space"
        ) from None


def specs_under(values: Mapping[str, Any], presets: str) -> dict[str, tuple[JobSpec, dict[str, Any]]]:
    """Return, per preset of a comma-separated list, the validated job and its values. Raises `InvalidJob`."""
    from shoal.jobs.presets import apply_preset, parse_presets
    from shoal.jobs.spec import parse_job

    laid = {name: apply_preset(values, name) for name in parse_presets(presets.split(","))}
    return {name: (parse_job(one), one) for name, one in laid.items()}


def answer(records: Mapping[str, RunRecord], judged: ComparisonOptions) -> None:
    """Print the comparison. Raises `InvalidJob` for runs that cannot be compared."""
    from shoal.results.compare import compare as compare_runs

    comparison = compare_runs(records, metric=judged.metric, target=judged.target, baseline=judged.baseline)
    if len({record.origin for record in records.values()}) > 1:
        out.warn("bytes of simulated runs lack the heads and polls that those of a coordinator include")
    data = {"comparison": asdict(comparison), "runs": {name: one.model_dump() for name, one in records.items()}}
    shown = [node_table(comparison)] if judged.by == "node" else []
    out.answer(data, comparison_table(comparison), *shown, _legend(comparison))
    silent = [row.run for row in comparison.rows if not row.nodes]
    if shown and silent:
        out.warn(f"{', '.join(silent)}: written without bytes per node; record it again with this release")


def comparison_table(comparison: Comparison) -> Table:
    """Return a table with one row per run."""
    shown = _shown(comparison)
    goal = shown(comparison.target)
    cost = (f"bytes to {goal}", f"time to {goal}", "relative to baseline")
    columns = ("final", "best", "synchronizations", "up", "down", *cost)
    rows = table("run", "algorithm", *columns, right=columns, turns=True)
    for row in comparison.rows:
        rows.add_row(
            row.run,
            f"{row.algorithm} / {row.schedule}",
            shown(row.final),
            shown(row.best),
            str(row.syncs),
            size(row.up_bytes),
            size(row.down_bytes),
            size(row.bytes_to_target),
            seconds(row.seconds_to_target),
            percent(row.ratio),
        )
    return rows


def node_table(comparison: Comparison) -> Table:
    """Return a table with the bytes per run and node: total, and until the target."""
    goal = _shown(comparison)(comparison.target)
    columns = ("up", "down", f"up to {goal}", f"down to {goal}", f"bytes to {goal}")
    rows = table("run", "node", *columns, right=columns)
    for row in comparison.rows:
        for one in row.nodes:
            both = None if one.up_bytes_to_target is None else one.up_bytes_to_target + (one.down_bytes_to_target or 0)
            counts = (one.up_bytes, one.down_bytes, one.up_bytes_to_target, one.down_bytes_to_target, both)
            rows.add_row(row.run, one.node or "(no node)", *map(size, counts))
        whole = (row.up_bytes, row.down_bytes, row.up_bytes_to_target, row.down_bytes_to_target, row.bytes_to_target)
        rows.add_row(row.run, "all", *map(size, whole))
    return rows


def _shown(comparison: Comparison) -> Callable[[float | None], str]:
    return percent if comparison.metric.endswith("accuracy") else number


def _legend(comparison: Comparison) -> str:
    return f"[dim]{comparison.metric}; bytes of {comparison.baseline} are the baseline[/]"
