"""`shoal run`: submit a job, and watch it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.jobs import node_table, reason, summary
from shoal.cli.options import JobFile, Token, Url
from shoal.cli.output import Advance, out
from shoal.cli.text import size
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.cli.api import Api


def run(
    file: JobFile,
    *,
    watch: Annotated[bool, typer.Option("--watch/--detach", help="follow it to its end, or return at once")] = True,
    model: Annotated[Path | None, typer.Option(help="model to start from (safetensors)", show_default=False)] = None,
    name: Annotated[
        str | None, typer.Option(help="run it under another name than the file's", show_default=False)
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="another value, e.g. algorithm.lr=0.05", show_default=False),
    ] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(min=0, help="seconds to watch; then exit with 4, the job goes on", show_default=False),
    ] = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Submit a job to a coordinator and watch it: rounds, accuracy, bytes, decisions.

    Example: shoal run digits.toml --set algorithm.lr=0.05 --name digits-slow

    Ends with 1 if the job failed or was stopped. Ctrl-C stops watching; the job goes on.
    """
    from shoal.cli.api import connect
    from shoal.cli.follow import follow
    from shoal.cli.values import job_of

    spec, values = job_of(file, change or [], name)
    with connect(url, token) as api:
        wanted: dict[str, Any] = {"spec": values}
        if model is not None:
            wanted["start_model"] = send_model(api, model)
        job = api.post("/jobs", wanted)
        out.notice(f"{spec.name} is submitted: {api.url}/jobs/{spec.name}")
        if not watch:
            out.answer({"job": job}, f"shoal jobs show {spec.name}")
            return
        try:
            job = follow(api, job, timeout_s=timeout_s)
        except KeyboardInterrupt:
            out.notice(f"{spec.name} goes on: shoal jobs show {spec.name}; to end it: shoal jobs stop {spec.name}")
            raise
        nodes = api.get(f"/jobs/{spec.name}/nodes")["nodes"]
    report(job, nodes)


def report(job: dict[str, Any], nodes: list[dict[str, Any]]) -> None:
    """The final tables. Raises `ShoalError` when the job didn't come to a good end."""
    if job["state"] == "done":
        out.answer({"job": job, "nodes": nodes}, summary(job), node_table(nodes))
        return
    if not out.flags.json:
        out.answer({}, summary(job), node_table(nodes))
    raise ShoalError(
        f"{job['name']} is {job['state']}: {reason(job)}",
        code=f"job.{job['state']}",
        hint=f"shoal jobs show {job['name']} --notes 50",
    )


def send_model(api: Api, path: Path) -> str:
    """Upload an initial model; its digest."""
    from shoal.cli.start_model import opened

    def counted(pieces: Iterator[bytes], advance: Advance) -> Iterator[bytes]:
        done = 0
        for piece in pieces:
            yield piece
            done += len(piece)
            advance(done, f"{size(done)}")

    with opened(path) as model, out.progress(path.name, model.nbytes) as advance:
        api.upload(f"/bodies/{model.digest}", model.nbytes, counted(model.pieces(), advance))
        return model.digest
