"""`shoal run`: submit a job, and watch it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.jobs import node_table, summary
from shoal.cli.options import JobFile, Judged, Presets, Token, Url, spread
from shoal.cli.output import Advance, out
from shoal.cli.signals import Interrupted
from shoal.cli.text import size
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.cli.api import Api

START_MODEL_S = 600.0
"""So long a coordinator may take to begin a job whose initial model, of gigabytes perhaps, goes to a store far away."""


@dataclass(frozen=True)
class Watching:
    """Whether and how long a job is followed."""

    watch: Annotated[bool, typer.Option("--watch/--detach", help="follow it to its end, or return at once")] = True
    timeout_s: Annotated[
        float | None,
        typer.Option(min=0, help="seconds to watch; then exit with 4, the job goes on", show_default=False),
    ] = None
    hold: Annotated[bool, typer.Option("--hold", help="submit it paused, and return; shoal jobs resume starts it")] = (
        False
    )


@dataclass(frozen=True)
class Several(Judged):
    """The same job under several presets, and how they are compared."""

    compare: Presets = None
    together: Annotated[bool, typer.Option("--together", help="with --compare: all at the same time")] = False


@spread
def run(
    file: JobFile,
    *,
    watching: Watching,
    model: Annotated[Path | None, typer.Option(help="model to start from (safetensors)", show_default=False)] = None,
    name: Annotated[
        str | None, typer.Option(help="run it under another name than the file's", show_default=False)
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="another value, e.g. algorithm.lr=0.05", show_default=False),
    ] = None,
    several: Several,
    url: Url = None,
    token: Token = None,
) -> None:
    """Submit a job to a coordinator and watch it: rounds, accuracy, bytes, decisions.

    Example: shoal run digits.toml --set algorithm.lr=0.05 --name digits-slow

    Ends with 1 if the job failed or was stopped. Ctrl-C stops watching; the job goes on.

    With --compare a job is made for each of the presets, NAME-PRESET, with the same seed; the next begins when the one
    before has ended, unless --together is given.
    """
    from shoal.cli.api import connect
    from shoal.cli.compare import specs_under
    from shoal.cli.values import job_of

    spec, values = job_of(file, change or [], name)
    jobs = {} if several.compare is None else specs_under(values, several.compare)
    if jobs and not watching.watch and not several.together:
        raise ShoalError(
            "--compare waits for each job before it makes the next", code="usage.invalid", hint="add --together"
        )
    if jobs and watching.hold:
        raise ShoalError("--compare runs what it makes", code="usage.invalid", hint="leave out --hold")
    with connect(url, token) as api:
        start = {} if model is None else {"start_model": send_model(api, model)}
        if jobs:
            run_all(api, [{"spec": one, **start} for _, one in jobs.values()], watching, several)
            return
        job = submit(api, {"spec": values, **start, **({"hold": True} if watching.hold else {})})
        if watching.hold:
            out.answer({"job": job}, f"shoal jobs resume {spec.name}")
            return
        if not watching.watch:
            out.answer({"job": job}, f"shoal jobs show {spec.name}")
            return
        job = watched(api, job, watching)
        nodes = api.get(f"/jobs/{spec.name}/nodes")["nodes"]
    report(job, nodes)


def submit(api: Api, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Make a job, and say where it can be seen."""
    patience_s = START_MODEL_S if "start_model" in wanted else None
    job = api.post("/jobs", dict(wanted), read_s=patience_s)
    name = wanted["spec"]["name"]
    out.notice(f"{name} is submitted: {api.url}/jobs/{name}")
    return job


def watched(api: Api, job: dict[str, Any], watching: Watching) -> dict[str, Any]:
    """Follow a job to its end."""
    from shoal.cli.follow import follow

    name = job["name"]
    try:
        return follow(api, job, timeout_s=watching.timeout_s)
    except KeyboardInterrupt:
        raise Interrupted(f"{name} goes on: shoal jobs show {name}; to end it: shoal jobs stop {name}") from None


def run_all(api: Api, wanted: list[dict[str, Any]], watching: Watching, several: Several) -> None:
    """Several jobs, and their comparison. Raises `ShoalError` when one didn't come to a good end."""
    from shoal.cli.compare import answer, fetch

    names = [one["spec"]["name"] for one in wanted]
    begun = [submit(api, one) for one in wanted] if several.together else []
    if not watching.watch:
        out.answer({"jobs": begun}, f"shoal compare {' '.join(names)}")
        return
    for place, one in enumerate(wanted):
        job = watched(api, begun[place] if several.together else submit(api, one), watching)
        if job["state"] != "done":
            raise ShoalError(
                f"{job['name']} is {job['state']}: {job['state_why']}",
                code=f"job.{job['state']}",
                hint=f"shoal compare {' '.join(names)} compares what there is",
            )
    answer({name: fetch(api, name) for name in names}, several)


def report(job: dict[str, Any], nodes: list[dict[str, Any]]) -> None:
    """The final tables. Raises `ShoalError` when the job didn't come to a good end."""
    if job["state"] == "done":
        out.answer({"job": job, "nodes": nodes}, summary(job), node_table(nodes))
        return
    if not out.flags.json:
        out.answer({}, summary(job), node_table(nodes))
    raise ShoalError(
        f"{job['name']} is {job['state']}: {job['state_why']}",
        code=f"job.{job['state']}",
        hint=f"shoal jobs show {job['name']} --notes 50",
    )


def send_model(api: Api, path: Path) -> str:
    """Upload an initial model; its digest."""
    from shoal.model_file import opened

    def counted(pieces: Iterator[bytes], advance: Advance) -> Iterator[bytes]:
        done = 0
        for piece in pieces:
            yield piece
            done += len(piece)
            advance(done, f"{size(done)}")

    with opened(path) as model, out.progress(path.name, model.nbytes) as advance:
        api.upload(f"/bodies/{model.digest}", model.nbytes, counted(model.pieces(), advance))
        return model.digest
