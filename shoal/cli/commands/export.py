"""`shoal export`: a job's model, metrics or whole run as files."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.terminal.options import Job, Token, Url, spread
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import safe, size
from shoal.core.errors import ShoalError
from shoal.core.errors.phrases import counted

if TYPE_CHECKING:
    from shoal.client.api import CoordinatorApi


@dataclass(frozen=True)
class ExportOptions:
    """Files to write instead of a model."""

    metrics: Annotated[
        Path | None,
        typer.Option(help="write the metrics of all versions to FILE.jsonl or FILE.csv instead", show_default=False),
    ] = None
    record: Annotated[
        Path | None,
        typer.Option(
            help="write a summary of the run (metrics and bytes per version) to FILE.json instead, for shoal compare",
            show_default=False,
        ),
    ] = None
    run: Annotated[
        Path | None,
        typer.Option(
            help="write all that the coordinator has recorded (events, tasks, metrics) to FILE.jsonl instead",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True)
class ModuleFileOptions:
    """Files of the learner's module to write instead of a model."""

    peft: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="write the adapters as a PEFT folder instead", show_default=False),
    ] = None
    merged: Annotated[
        bool,
        typer.Option("--merged", help="with --peft: write the whole model, with the adapters merged into the base"),
    ] = False
    onnx: Annotated[
        Path | None,
        typer.Option(metavar="FILE.onnx", help="write the learner's module as ONNX instead", show_default=False),
    ] = None
    learner: Annotated[
        str | None,
        typer.Option(
            help="with --peft and --onnx: your learner, which has the module: FILE.py:NAME", show_default=False
        ),
    ] = None


@spread
def export(
    job: Job,
    *,
    version: Annotated[
        str,
        typer.Option(help="version of the model: a number, best (by accuracy), last, or a label such as production"),
    ] = "last",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="file of the model (default JOB-VERSION.safetensors)", show_default=False),
    ] = None,
    instead: ExportOptions,
    of_learner: ModuleFileOptions,
    force: Annotated[bool, typer.Option("--force", "-f", help="overwrite the file")] = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Download a job's model (safetensors, with its SHA-256 checked), its metrics, or the record of its run.

    Example: shoal export digits --version best -o digits.safetensors

    With --metrics, --record, --run, --peft or --onnx only that is written, unless -o is given too.
    """
    from shoal.cli.connection import connect
    from shoal.client.model_versions import resolve_version

    if instead.metrics is not None and instead.metrics.suffix not in (".jsonl", ".csv"):
        text = f"{instead.metrics}: neither .jsonl nor .csv"
        raise ShoalError(text, code="usage.invalid", hint="the ending says the format")
    for option, given in (("--peft", of_learner.peft), ("--onnx", of_learner.onnx)):
        if given is not None and of_learner.learner is None:
            text = f"{option} needs the model of your learner"
            raise ShoalError(text, code="usage.invalid", hint="add --learner FILE.py:NAME")
    others = (instead.metrics, instead.record, instead.run, of_learner.peft, of_learner.onnx)
    for path in (output, *others):
        _vacant(path, force)
    with connect(url, token) as api:
        data, lines = _write_others(api, job, instead)
        of_model = of_learner.peft or of_learner.onnx or output or not any(others)
        number = resolve_version(api, job, version) if of_model else 0
        for kind, written in _write_from_learner(api, job, number, of_learner).items():
            data[kind] = {"path": written, "version": number}
            lines.append(f"{safe(written)}: version {number}")
        if output is not None or not any(others):
            path = output or Path(f"{job}-{number}.safetensors")
            _vacant(path, force)
            data["model"] = {"path": path, "version": number, **download(api, job, number, path)}
            lines.append(
                f"{safe(path)}: version {number}, {size(data['model']['bytes'])}, sha256 {data['model']['sha256']}"
            )
    out.answer(data, *lines)


def _write_others(api: CoordinatorApi, job: str, instead: ExportOptions) -> tuple[dict[str, Any], list[str]]:
    """Write the requested files besides the model; return (JSON values, lines for people)."""
    from shoal.cli.commands.compare import fetch, write
    from shoal.client.api import segment

    data: dict[str, Any] = {}
    lines = []
    if instead.metrics is not None:
        rows = api.get(f"/jobs/{segment(job)}/versions", points=0)["versions"]
        write_metrics(instead.metrics, rows)
        data["metrics"] = {"path": instead.metrics, "versions": len(rows)}
        lines.append(f"{safe(instead.metrics)}: {len(rows)} versions")
    if instead.record is not None:
        known = fetch(api, job)
        write(known, instead.record)
        data["record"] = {"path": instead.record, "versions": len(known.versions)}
        lines.append(f"{safe(instead.record)}: {len(known.versions)} versions")
    if instead.run is not None:
        data["run"] = {"path": instead.run, **save_run(api, job, instead.run)}
        lines.append(f"{safe(instead.run)}: {size(data['run']['bytes'])}, {_line_counts(data['run']['lines'])}")
    return data, lines


def _write_from_learner(api: CoordinatorApi, job: str, number: int, asked: ModuleFileOptions) -> dict[str, Path]:
    """Write what the learner's module becomes with a model; return the paths by kind. Raises `ShoalError`."""
    if asked.peft is None and asked.onnx is None:
        return {}
    from shoal.client.model_versions import download_model
    from shoal.learn.loading import load_learner, load_trained

    learner = load_learner(str(asked.learner))
    load_trained(learner, download_model(api, job, number))
    written = {}
    if asked.onnx is not None:
        from shoal.serving.onnx_file import save_onnx

        written["onnx"] = save_onnx(learner, asked.onnx)
    if asked.peft is not None:  # last, because a merged learner has no adapters any more
        from shoal.learn.hf import save_adapter

        written["peft"] = save_adapter(learner, asked.peft, merged=asked.merged)
    return written


def _vacant(path: Path | None, force: bool) -> None:
    if path is not None and path.exists() and not force:
        raise ShoalError(f"{path} exists", code="usage.exists", hint="choose another file, or add --force")


def download(api: CoordinatorApi, job: str, number: int, path: Path) -> dict[str, Any]:
    """Fetch a model, check its SHA-256, and write it atomically. Raises `ShoalError`."""
    from shoal.client.model_versions import check_arrived

    digest = hashlib.sha256()

    def check(expected: str) -> None:
        check_arrived(digest.hexdigest(), expected)

    done = _fetch(api, (job, f"models/{number}"), path, f"version {number}", digest.update, check)
    return {"bytes": done, "sha256": digest.hexdigest()}


def save_run(api: CoordinatorApi, job: str, path: Path) -> dict[str, Any]:
    """Fetch a run as JSON Lines and write it atomically once its last line has arrived. Raises `ShoalError`."""
    tail, lines = b"", {}

    def take(piece: bytes) -> None:
        nonlocal tail
        tail = (tail + piece)[-END_BYTES_MAX:]

    def check(_: str) -> None:
        lines.update(_counted(tail))

    done = _fetch(api, (job, "export"), path, "the run", take, check)
    return {"bytes": done, "lines": lines}


def _fetch(
    api: CoordinatorApi,
    of_job: tuple[str, str],
    path: Path,
    what: str,
    take: Callable[[bytes], None],
    check: Callable[[str], None],
) -> int:
    """Fetch a page of a job into a temporary file, call `take` for each piece, and rename it if `check` accepts the
    digest."""
    from shoal.client.api import segment

    (job, page), partial, done = of_job, path.with_name(f".{path.name}.part"), 0
    try:
        with api.download(f"/jobs/{segment(job)}/{page}") as body, partial.open("wb") as file:
            whole = f" of {size(body.nbytes)}" if body.nbytes is not None else ""
            with out.progress(what, body.nbytes) as advance:
                for piece in body.pieces:
                    file.write(piece)
                    take(piece)
                    done += len(piece)
                    advance(done, f"{size(done)}{whole}")
            file.flush()
            os.fsync(file.fileno())
        check(body.digest)
        partial.replace(path)
    except OSError as error:
        raise ShoalError(
            f"{path}: {error.strerror}", code="export.failed", hint="check folder and free space"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
    return done


END_BYTES_MAX = 1000
"""The line that ends a run is shorter."""


def _counted(tail: bytes) -> dict[str, int]:
    """Return the number of lines per type from the last line of a run. Raises `ShoalError` for another line."""
    try:
        last = json.loads(tail.rstrip().rpartition(b"\n")[2])
        if last["type"] == "end":
            return dict(last["lines"])
    except (ValueError, KeyError, TypeError):
        last = None
    raise ShoalError("the run broke off on its way", code="export.damaged", hint="try again")


def _line_counts(lines: dict[str, int]) -> str:
    return ", ".join(counted(count, kind.replace("_", " ")) for kind, count in lines.items() if kind in _NAMED)


_NAMED = ("version", "report", "job_event", "failure")


def write_metrics(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write one line per version; a CSV file has one column per metric."""
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            if path.suffix == ".jsonl":
                file.writelines(json.dumps(row) + "\n" for row in rows)
                return
            flat = [{**{k: v for k, v in row.items() if k != "metrics"}, **row["metrics"]} for row in rows]
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in flat for key in row)))
            writer.writeheader()
            writer.writerows(flat)
    except OSError as error:
        raise ShoalError(
            f"{path}: {error.strerror}", code="export.failed", hint="check folder and free space"
        ) from None
