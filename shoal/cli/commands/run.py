"""`shoal run`: submit a job and watch it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.commands.jobs import node_table, summary
from shoal.cli.process.signals import Interrupted
from shoal.cli.terminal.options import Changes, ComparisonOptions, JobFile, Presets, Token, Url, spread
from shoal.cli.terminal.output import ReportProgress, out
from shoal.cli.terminal.text import size
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.client.api import CoordinatorApi


@dataclass(frozen=True)
class FollowOptions:
    """Options for watching a job."""

    watch: Annotated[bool, typer.Option("--watch/--detach", help="follow the job to its end, or return at once")] = True
    timeout_s: Annotated[
        float | None,
        typer.Option(min=0, help="seconds to watch; then exit with 4, while the job continues", show_default=False),
    ] = None
    paused: Annotated[
        bool, typer.Option("--paused", help="submit the job paused and return; shoal jobs resume starts it")
    ] = False


@dataclass(frozen=True)
class PresetOptions(ComparisonOptions):
    """Options for a comparison of presets."""

    compare: Presets = None
    together: Annotated[bool, typer.Option("--together", help="with --compare: all jobs at the same time")] = False


@dataclass(frozen=True)
class StartOptions:
    """The model to start from, and the base model of adapters."""

    model: Annotated[
        Path | None, typer.Option(help="model to start from: safetensors, or a PEFT folder", show_default=False)
    ] = None
    base: Annotated[
        Path | None,
        typer.Option(help="the frozen tensors (safetensors), for nodes that hold others", show_default=False),
    ] = None
    learner: Annotated[
        str | None,
        typer.Option(help="with a PEFT folder: your learner, which has the base: FILE.py:NAME", show_default=False),
    ] = None


@spread
def run(
    file: JobFile,
    *,
    watching: FollowOptions,
    begin: StartOptions,
    name: Annotated[str | None, typer.Option(help="name of the job (default: the file's)", show_default=False)] = None,
    change: Changes = None,
    several: PresetOptions,
    url: Url = None,
    token: Token = None,
) -> None:
    """Submit a job to a coordinator and watch its rounds, accuracy, bytes and decisions.

    Example: shoal run digits.toml --set algorithm.lr=0.05 --name digits-slow

    Exit code 1 if the job failed or was stopped. Ctrl-C stops watching; the job continues.

    With --compare one job per preset, NAME-PRESET, is submitted with the same seed; the next starts when the one
    before has ended, unless --together is given.
    """
    from shoal.cli.commands.compare import specs_under
    from shoal.cli.connection import connect
    from shoal.cli.terminal.values import job_of

    spec, values = job_of(file, change or [], name)
    jobs = {} if several.compare is None else specs_under(values, several.compare)
    if jobs and not watching.watch and not several.together:
        raise ShoalError(
            "--compare waits for each job before it makes the next", code="usage.invalid", hint="add --together"
        )
    if jobs and watching.paused:
        raise ShoalError("--compare runs what it makes", code="usage.invalid", hint="leave out --paused")
    with connect(url, token) as api:
        start = {} if begin.model is None else {"start_model": send_start(api, begin.model, begin.learner)}
        start |= {} if begin.base is None else {"base_model": send_model(api, begin.base, base=True)}
        if jobs:
            run_all(api, [{"spec": one, **start} for _, one in jobs.values()], watching, several)
            return
        job = submit(api, {"spec": values, **start, **({"paused": True} if watching.paused else {})})
        if watching.paused:
            out.answer({"job": job}, f"shoal jobs resume {spec.name}")
            return
        if not watching.watch:
            out.answer({"job": job}, f"shoal jobs show {spec.name}")
            return
        job = watched(api, job, watching)
        nodes = api.get(f"/jobs/{spec.name}/nodes")["nodes"]
    report(job, nodes)


def submit(api: CoordinatorApi, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Create a job and print its address."""
    job = api.create_job(dict(wanted))
    name = wanted["spec"]["name"]
    out.notice(f"{name} is submitted: {api.url}/jobs/{name}")
    warn_of_base(job)
    return job


def warn_of_base(job: Mapping[str, Any]) -> None:
    """Name the base model that a new job needs if the coordinator does not have it."""
    base = job.get("base_model")
    if base is not None and base["bytes"] is None:
        text = f"base model {base['digest'][:12]} is not at the coordinator: nodes of {job['name']} that do not hold it"
        out.warn(f"{text} are excluded; shoal run and shoal restore upload it by --base FILE")


def watched(api: CoordinatorApi, job: dict[str, Any], watching: FollowOptions) -> dict[str, Any]:
    """Follow a job until it ends."""
    from shoal.cli.commands.follow import follow

    name = job["name"]
    try:
        return follow(api, job, timeout_s=watching.timeout_s)
    except KeyboardInterrupt:
        raise Interrupted(f"{name} goes on: shoal jobs show {name}; to end it: shoal jobs stop {name}") from None


def run_all(api: CoordinatorApi, wanted: list[dict[str, Any]], watching: FollowOptions, several: PresetOptions) -> None:
    """Run several jobs and compare them. Raises `ShoalError` when one does not end as done."""
    from shoal.cli.commands.compare import answer, fetch
    from shoal.client.followed_job import unfinished

    names = [one["spec"]["name"] for one in wanted]
    begun = [submit(api, one) for one in wanted] if several.together else []
    if not watching.watch:
        out.answer({"jobs": begun}, f"shoal compare {' '.join(names)}")
        return
    for place, one in enumerate(wanted):
        job = watched(api, begun[place] if several.together else submit(api, one), watching)
        if job["state"] != "done":
            raise unfinished(job, f"shoal compare {' '.join(names)} compares what there is")
    answer({name: fetch(api, name) for name in names}, several)


def report(job: dict[str, Any], nodes: list[dict[str, Any]]) -> None:
    """Print the final tables. Raises `ShoalError` when the job did not end as done."""
    from shoal.client.followed_job import unfinished

    if job["state"] == "done":
        out.answer({"job": job, "nodes": nodes}, summary(job), node_table(nodes))
        return
    if not out.flags.json:
        out.answer({}, summary(job), node_table(nodes))
    raise unfinished(job)


def send_start(api: CoordinatorApi, path: Path, learner: str | None) -> str:
    """Upload an initial model, from a file or a PEFT folder, and return its digest."""
    if not path.is_dir():
        return send_model(api, path)
    from tempfile import TemporaryDirectory

    from shoal.learn.hf import load_adapter
    from shoal.learn.loading import load_learner
    from shoal.model_file import save_model

    if learner is None:
        text = f"{path} is a folder of adapters, which need the model of your learner"
        raise ShoalError(text, code="usage.invalid", hint="add --learner FILE.py:NAME")
    with TemporaryDirectory(prefix="shoal-model-") as folder:
        start = load_adapter(load_learner(learner), path)
        return send_model(api, save_model(start, Path(folder) / f"{path.name}.safetensors"))


def send_model(api: CoordinatorApi, path: Path, *, base: bool = False) -> str:
    """Upload an initial model or a base model and return its digest."""
    from shoal.model_file import opened

    with opened(path, base=base) as model, out.progress(path.name, model.nbytes) as advance:
        return api.upload_model(model, _counted(model.pieces(), advance), base=base)


def _counted(pieces: Iterator[bytes], advance: ReportProgress) -> Iterator[bytes]:
    """Yield pieces and show how many bytes went."""
    done = 0
    for piece in pieces:
        yield piece
        done += len(piece)
        advance(done, f"{size(done)}")
