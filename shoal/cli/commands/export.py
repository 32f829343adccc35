"""`shoal export`: a job's model, its metrics, or all that is known of it, as files."""

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

from shoal.cli.options import Job, Token, Url, spread
from shoal.cli.output import out
from shoal.cli.text import safe, size
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.cli.api import Api


@dataclass(frozen=True)
class Instead:
    """What is written instead of a model."""

    metrics: Annotated[
        Path | None,
        typer.Option(help="write all versions' metrics to FILE.jsonl or FILE.csv instead", show_default=False),
    ] = None
    record: Annotated[
        Path | None,
        typer.Option(help="write the run to FILE.json instead, for shoal compare", show_default=False),
    ] = None
    run: Annotated[
        Path | None,
        typer.Option(help="write all that is known of the run to FILE.jsonl instead", show_default=False),
    ] = None


@spread
def export(
    job: Job,
    *,
    version: Annotated[
        str, typer.Option(help="a number, or best (by accuracy), last, or a label such as production")
    ] = "last",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="the model's file (default JOB-VERSION.safetensors)", show_default=False),
    ] = None,
    instead: Instead,
    force: Annotated[bool, typer.Option("--force", "-f", help="overwrite the file")] = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Download a job's model (safetensors, its SHA-256 checked), its metrics, or all of the run.

    Example: shoal export digits --version best -o digits.safetensors

    With --metrics, --record or --run only these are written, unless -o is given too.
    """
    from shoal.cli.api import connect

    if instead.metrics is not None and instead.metrics.suffix not in (".jsonl", ".csv"):
        text = f"{instead.metrics}: neither .jsonl nor .csv"
        raise ShoalError(text, code="usage.invalid", hint="the ending says the format")
    others = (instead.metrics, instead.record, instead.run)
    for path in (output, *others):
        _vacant(path, force)
    with connect(url, token) as api:
        data, lines = _write_others(api, job, instead)
        if others == (None, None, None) or output is not None:
            number = resolve(api, job, version)
            path = output or Path(f"{job}-{number}.safetensors")
            _vacant(path, force)
            data["model"] = {"path": path, "version": number, **download(api, job, number, path)}
            lines.append(
                f"{safe(path)}: version {number}, {size(data['model']['bytes'])}, sha256 {data['model']['sha256']}"
            )
    out.answer(data, *lines)


def _write_others(api: Api, job: str, instead: Instead) -> tuple[dict[str, Any], list[str]]:
    """Write what is asked for beside a model; (for programs, for people)."""
    from shoal.cli.api import segment
    from shoal.cli.compare import fetch, write

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
        lines.append(f"{safe(instead.run)}: {size(data['run']['bytes'])}, {_told(data['run']['lines'])}")
    return data, lines


def _vacant(path: Path | None, force: bool) -> None:
    if path is not None and path.exists() and not force:
        raise ShoalError(f"{path} exists", code="usage.exists", hint="choose another file, or add --force")


def resolve(api: Api, job: str, version: str) -> int:
    """The number that `version` (a number, best, last, a label) means. Raises `ShoalError` when there is none."""
    from shoal.cli.api import segment

    if version.isdecimal():
        return int(version)
    found = api.get(f"/jobs/{segment(job)}")
    if version not in ("best", "last"):
        return _labelled(found, version)
    if found["model"] is None:
        raise ShoalError(f"{job} has no model yet", code="job.no-model", hint=f"shoal jobs show {job}")
    if version == "last":
        return int(found["version"])
    if found["best"] is None:
        raise ShoalError(f"no version of {job} has an accuracy", code="job.no-accuracy", hint="--version last")
    return int(found["best"]["version"])


def _labelled(job: dict[str, Any], label: str) -> int:
    labels: dict[str, int] = job.get("labels", {})
    if label not in labels:
        known = ", ".join(sorted(labels)) or "none"
        raise ShoalError(
            f"{label}: neither a number, best or last, nor a label of {job['name']}",
            code="usage.invalid",
            hint=f"labels of this job: {known}",
        )
    return labels[label]


def download(api: Api, job: str, number: int, path: Path) -> dict[str, Any]:
    """Fetch one model beside `path`, check it, and move it there whole. Raises `ShoalError`."""
    digest = hashlib.sha256()

    def check(expected: str) -> None:
        if expected and digest.hexdigest() != expected:
            raise ShoalError(
                f"the model arrived damaged: sha256 {digest.hexdigest()}, expected {expected}",
                code="export.damaged",
                hint="try again; if it happens twice, look at the coordinator's disk",
            )

    done = _fetch(api, (job, f"models/{number}"), path, f"version {number}", digest.update, check)
    return {"bytes": done, "sha256": digest.hexdigest()}


def save_run(api: Api, job: str, path: Path) -> dict[str, Any]:
    """Fetch a run as JSON Lines beside `path`, and move it there when its last line has come. Raises `ShoalError`."""
    tail, lines = b"", {}

    def take(piece: bytes) -> None:
        nonlocal tail
        tail = (tail + piece)[-END_BYTES_MAX:]

    def check(_: str) -> None:
        lines.update(_counted(tail))

    done = _fetch(api, (job, "export"), path, "the run", take, check)
    return {"bytes": done, "lines": lines}


def _fetch(
    api: Api,
    of_job: tuple[str, str],
    path: Path,
    what: str,
    take: Callable[[bytes], None],
    check: Callable[[str], None],
) -> int:
    """Fetch (job, page) beside `path`, each piece shown to `take`; move it there once `check` lets the digest pass."""
    from shoal.cli.api import segment

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
    """How many lines of each type the last line tells of. Raises `ShoalError` when it is not the last of a run."""
    try:
        last = json.loads(tail.rstrip().rpartition(b"\n")[2])
        if last["type"] == "end":
            return dict(last["lines"])
    except (ValueError, KeyError, TypeError):
        last = None
    raise ShoalError("the run broke off on its way", code="export.damaged", hint="try again")


def _told(lines: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in lines.items() if kind in _NAMED)


_NAMED = ("version", "report", "note", "failure")


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
