"""`shoal export`: a job's model and its metrics as files."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.options import Job, Token, Url
from shoal.cli.output import out
from shoal.cli.text import safe, size
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.cli.api import Api


def export(
    job: Job,
    *,
    version: Annotated[str, typer.Option(help="a number, or best (by accuracy), or last")] = "last",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="the model's file (default JOB-VERSION.safetensors)", show_default=False),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(help="write all versions' metrics to FILE.jsonl or FILE.csv instead", show_default=False),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="write the run to FILE.json instead, for shoal compare", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="overwrite the file")] = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Download a job's model (safetensors, its SHA-256 checked), or its metrics.

    Example: shoal export digits --version best -o digits.safetensors

    With --metrics or --record only these are written, unless -o is given too.
    """
    from shoal.cli.api import connect, segment
    from shoal.cli.compare import fetch, write

    if metrics is not None and metrics.suffix not in (".jsonl", ".csv"):
        raise ShoalError(f"{metrics}: neither .jsonl nor .csv", code="usage.invalid", hint="the ending says the format")
    for path in (output, metrics, record):
        _vacant(path, force)
    data: dict[str, Any] = {}
    lines = []
    with connect(url, token) as api:
        if metrics is not None:
            rows = api.get(f"/jobs/{segment(job)}/versions", points=0)["versions"]
            write_metrics(metrics, rows)
            data["metrics"] = {"path": metrics, "versions": len(rows)}
            lines.append(f"{safe(metrics)}: {len(rows)} versions")
        if record is not None:
            run = fetch(api, job)
            write(run, record)
            data["record"] = {"path": record, "versions": len(run.versions)}
            lines.append(f"{safe(record)}: {len(run.versions)} versions")
        if (metrics is None and record is None) or output is not None:
            number = resolve(api, job, version)
            path = output or Path(f"{job}-{number}.safetensors")
            _vacant(path, force)
            data["model"] = {"path": path, "version": number, **download(api, job, number, path)}
            lines.append(
                f"{safe(path)}: version {number}, {size(data['model']['bytes'])}, sha256 {data['model']['sha256']}"
            )
    out.answer(data, *lines)


def _vacant(path: Path | None, force: bool) -> None:
    if path is not None and path.exists() and not force:
        raise ShoalError(f"{path} exists", code="usage.exists", hint="choose another file, or add --force")


def resolve(api: Api, job: str, version: str) -> int:
    """The number that `version` means. Raises `ShoalError` when there is none."""
    from shoal.cli.api import segment

    if version.isdecimal():
        return int(version)
    if version not in ("best", "last"):
        raise ShoalError(f"--version {version}: a number, best or last", code="usage.invalid")
    found = api.get(f"/jobs/{segment(job)}")
    if found["model"] is None:
        raise ShoalError(f"{job} has no model yet", code="job.no-model", hint=f"shoal jobs show {job}")
    if version == "last":
        return int(found["version"])
    if found["best"] is None:
        raise ShoalError(f"no version of {job} has an accuracy", code="job.no-accuracy", hint="--version last")
    return int(found["best"]["version"])


def download(api: Api, job: str, number: int, path: Path) -> dict[str, Any]:
    """Fetch one model beside `path`, check it, and move it there whole. Raises `ShoalError`."""
    from shoal.cli.api import segment

    partial = path.with_name(f".{path.name}.part")
    digest, done = hashlib.sha256(), 0
    try:
        with api.download(f"/jobs/{segment(job)}/models/{number}") as body, partial.open("wb") as file:
            with out.progress(f"version {number}", body.nbytes) as advance:
                for piece in body.pieces:
                    file.write(piece)
                    digest.update(piece)
                    done += len(piece)
                    advance(done, f"{size(done)} of {size(body.nbytes)}")
            file.flush()
            os.fsync(file.fileno())
        if body.digest and digest.hexdigest() != body.digest:
            raise ShoalError(
                f"the model arrived damaged: sha256 {digest.hexdigest()}, expected {body.digest}",
                code="export.damaged",
                hint="try again; if it happens twice, look at the coordinator's disk",
            )
        partial.replace(path)
    except OSError as error:
        raise ShoalError(
            f"{path}: {error.strerror}", code="export.failed", hint="check folder and free space"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
    return {"bytes": done, "sha256": digest.hexdigest()}


def write_metrics(path: Path, rows: list[dict[str, Any]]) -> None:
    """One line per version; in a CSV each metric is a column."""
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
