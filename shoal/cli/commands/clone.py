"""`shoal jobs clone`: a new job from the file of another job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.commands.jobs import app, summary
from shoal.cli.terminal.options import Changes, Job, Token, Url
from shoal.cli.terminal.output import out

if TYPE_CHECKING:
    from shoal.client.api import CoordinatorApi


@app.command()
def clone(
    job: Job,
    name: Annotated[
        str | None,
        typer.Option(help="name of the new job (default: the first free of JOB-2, JOB-3 …)", show_default=False),
    ] = None,
    change: Changes = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="start from this model: FILE.safetensors, JOB or JOB@VERSION (a number, best, last or a label)",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Submit a job with another job's file, some values changed, and a new model unless --model names one.

    Example: shoal jobs clone digits --set algorithm.lr=0.05 --model digits@best
    """
    from shoal.cli.commands.run import submit
    from shoal.cli.connection import connect
    from shoal.cli.terminal.values import changed
    from shoal.client.api import segment

    with connect(url, token) as api:
        spec = changed(api.get(f"/jobs/{segment(job)}")["spec"], change or [])
        spec["name"] = name or next_name(job, {one["name"] for one in api.every("/jobs", "jobs")})
        start = {} if model is None else {"start_model": given_model(api, model)}
        found = submit(api, {"spec": spec, **start})
    out.notice(f"to watch it: shoal jobs show {found['name']}")
    out.answer({"job": found}, summary(found))


def given_model(api: CoordinatorApi, model: str) -> str:
    """Upload a model, from a file or a version of a job, and return its digest. Raises `ShoalError`."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from shoal.cli.commands.export import download
    from shoal.cli.commands.run import send_model
    from shoal.client.model_versions import resolve_version

    path = Path(model)
    if path.is_file() or path.suffix == ".safetensors" or "/" in model:
        return send_model(api, path)
    job, _, version = model.partition("@")
    with TemporaryDirectory(prefix="shoal-model-") as folder:
        file = Path(folder) / f"{job}.safetensors"
        download(api, job, resolve_version(api, job, version or "last"), file)
        return send_model(api, file)


def next_name(job: str, taken: set[str]) -> str:
    """Return the first unused name of JOB-2, JOB-3, …"""
    import re
    from itertools import count

    stem = re.sub(r"-\d{1,4}$", "", job)
    names = (stem[: 63 - len(f"-{number}")] + f"-{number}" for number in count(2))
    return next(one for one in names if one not in taken)
