"""`shoal jobs clone`: a job with the file of another, and perhaps a model of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.jobs import app, summary
from shoal.cli.options import Job, Token, Url
from shoal.cli.output import out

if TYPE_CHECKING:
    from shoal.cli.api import Api


@app.command()
def clone(
    job: Job,
    name: Annotated[
        str | None, typer.Option(help="of the new job (default: the next that is free, JOB-2)", show_default=False)
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="another value, e.g. algorithm.lr=0.05", show_default=False),
    ] = None,
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
    """Begin a job with the file of another, some values changed. It starts with a new model, unless --model says one.

    Example: shoal jobs clone digits --set algorithm.lr=0.05 --model digits@best
    """
    from shoal.cli.api import connect, segment
    from shoal.cli.run import submit
    from shoal.cli.values import changed

    with connect(url, token) as api:
        spec = changed(api.get(f"/jobs/{segment(job)}")["spec"], change or [])
        spec["name"] = name or next_name(job, {one["name"] for one in api.every("/jobs", "jobs")})
        start = {} if model is None else {"start_model": given_model(api, model)}
        found = submit(api, {"spec": spec, **start})
    out.notice(f"to watch it: shoal jobs show {found['name']}")
    out.answer({"job": found}, summary(found))


def given_model(api: Api, model: str) -> str:
    """Upload the model that a person names: a file, or a job's version here; its digest. Raises `ShoalError`."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from shoal.cli.export import download, resolve
    from shoal.cli.run import send_model

    path = Path(model)
    if path.is_file() or path.suffix == ".safetensors" or "/" in model:
        return send_model(api, path)
    job, _, version = model.partition("@")
    with TemporaryDirectory(prefix="shoal-model-") as folder:
        file = Path(folder) / f"{job}.safetensors"
        download(api, job, resolve(api, job, version or "last"), file)
        return send_model(api, file)


def next_name(job: str, taken: set[str]) -> str:
    """The first of JOB-2, JOB-3 … that no job has; JOB without its own number."""
    import re
    from itertools import count

    stem = re.sub(r"-\d{1,4}$", "", job)
    names = (stem[: 63 - len(f"-{number}")] + f"-{number}" for number in count(2))
    return next(one for one in names if one not in taken)
