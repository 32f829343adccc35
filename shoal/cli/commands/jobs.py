"""`shoal jobs`: jobs at a coordinator."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shoal.cli.commands.job_peers import peers
from shoal.cli.terminal.options import Job, Token, Url, Why, Yes, hand_down
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import accuracy, is_curve_point, number, pairs, percent, safe, seconds, size, state, table
from shoal.core.errors import Refused, ShoalError

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(help="Jobs at a coordinator: list, show, peers, pause, resume, stop, set, clone, tag, remove.")


@app.callback(invoke_without_command=True)
def jobs(context: typer.Context, url: Url = None, token: Token = None) -> None:
    """List and control jobs at a coordinator: list, show, peers, pause, resume, stop, set, clone, tag, remove."""
    hand_down(context, url=url, token=token)
    if context.invoked_subcommand is None:
        list_jobs(url=url, token=token)


@app.command("list")
def list_jobs(
    tag: Annotated[str, typer.Option(help="only jobs with this tag", show_default=False)] = "",
    url: Url = None,
    token: Token = None,
) -> None:
    """List all jobs with their progress and metrics, then the split jobs."""
    from shoal.cli.connection import connect

    with connect(url, token) as api:
        found = [job for job in api.every("/jobs", "jobs") if tag in ("", *job.get("tags", ()))]
        split_jobs = [] if tag else api.get("/split")["split_jobs"]
    columns = ("job", "state", "version", "accuracy", "best", "nodes", "up", "down", "algorithm")
    rows = table(*columns, right=_NUMERIC, spare=("best", "nodes", "algorithm"))
    for job in found:
        rows.add_row(*_row(job))
    hint = f"no job has the tag {safe(tag)}" if tag else "no jobs: [bold]shoal run JOB.toml[/] submits one"
    shown: list[Any] = [rows] if found else [] if split_jobs else [hint]
    if split_jobs:
        shown.append(split_table(split_jobs))
    out.answer({"jobs": found, "split_jobs": split_jobs}, *shown)


_NUMERIC = ("version", "accuracy", "best", "nodes", "up", "down")


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    return (
        job["name"],
        state(job["state"]) + _mode_suffix(job) + _waits(job),
        made(job),
        accuracy(job),
        percent((job["best"] or {}).get("accuracy")) + (" (1 node)" if _is_of_one(job) else ""),
        str(job["nodes"]),
        size(job["up_bytes"]),
        size(job["down_bytes"]),
        f"{job['algorithm']} / {job['schedule']}",
    )


def _is_of_one(job: dict[str, Any]) -> bool:
    """Return whether one node alone measured the best version, on its own data."""
    return bool(job["best"]) and job["best"].get("nodes") == 1


def _mode_suffix(job: dict[str, Any]) -> str:
    """Return where a job is unless the coordinator runs it."""
    return "" if job["mode"] == "server" else f" [yellow]({job['mode']})[/]"


def _waits(job: dict[str, Any]) -> str:
    """Return why a job waits."""
    return f" [yellow]({safe(job['state_why'].partition(';')[0])})[/]" if job.get("idle") else ""


@app.command("show")
def show(
    job: Job,
    events: Annotated[int, typer.Option(min=0, max=1000, help="number of job events to show, newest last")] = 10,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show one job or split job: progress, metrics, nodes, bytes, and the latest decisions with their reasons."""
    from shoal.cli.connection import connect
    from shoal.client.api import segment

    with connect(url, token) as api:
        path = f"/jobs/{segment(job)}"
        try:
            found = api.get(path)
        except Refused as error:
            if error.code != "job.unknown" or job not in [one["name"] for one in api.get("/split")["split_jobs"]]:
                raise
            split_job = api.get(f"/split/{segment(job)}")
            out.answer({"split_job": split_job}, split_summary(split_job), split_node_table(split_job))
            return
        nodes = api.get(f"{path}/nodes")["nodes"]
        found_events = api.get(f"{path}/events", limit=max(events, 1))["events"] if events else []
        traffic = api.get(f"{path}/traffic", by="kind")
    data = {"job": found, "nodes": nodes, "events": found_events[-events:] if events else [], "traffic": traffic}
    parts: list[Any] = [summary(found)]
    if nodes:
        parts.append(node_table(nodes))
    if data["events"]:
        parts.append(event_table(data["events"]))
    out.answer(data, *parts)


def made(job: dict[str, Any]) -> str:
    """Return the number of versions, and the total if it is known."""
    return f"{job['version']} of {job['versions']}" if job["versions"] else str(job["version"])


MODES = {"server": "led by the coordinator", "gossip": "led by its peers", "returning": "from gossip to the server"}


def summary(job: dict[str, Any]) -> Table:
    """Return a job in a few lines."""
    rows = [("job", job["name"] + (f": {safe(job['title'])}" if job["title"] not in ("", job["name"]) else ""))]
    style, waits = ("yellow", "waiting: ") if job.get("idle") else ("dim", "")
    why = f" [{style}]({waits}{safe(job['state_why'])})[/]" if job["state_why"] else ""
    rows += [("state", state(job["state"]) + why)]
    if job.get("headline"):
        rows += [("now", safe(job["headline"]))]
    if job.get("mode_since"):
        since = job["mode_since"][:19].replace("T", " ")
        rows += [("mode", f"{job['mode']}: {MODES[job['mode']]} [dim](since {since} UTC)[/]")]
    if job.get("restored_from"):
        where = "from {node} at version {version}, term {term}".format(**job["restored_from"])
        rows += [("restored", f"{safe(where)} [dim](what was before is not known here)[/]")]
    left = f", about {seconds(job['eta_s'])} left" if job.get("eta_s") else ""
    rows += [("version", made(job) + left)]
    rows += [("algorithm", f"{job['algorithm']} / {job['schedule']}"), ("nodes", _taking_part(job))]
    for name, text in (("settings_changed", "changed"), ("settings_pending", "next round")):
        if job.get(name):
            rows.append((text, safe(", ".join(f"{key} = {value:g}" for key, value in job[name].items()))))
    if job.get("tags"):
        rows.append(("tags", safe(", ".join(job["tags"]))))
    if job["metrics"]:
        of = f"version {job['metrics_version']}" if job.get("metrics_version") is not None else "the newest version"
        part = job.get("provisional")
        waits = f", {part['reported']} of the {part['asked']} nodes that measure it so far" if part else ""
        rows.append(("measured", f"{of}{waits}"))
    for name, value in sorted((name, value) for name, value in job["metrics"].items() if not is_curve_point(name)):
        rows.append((safe(name), percent(value) if name.endswith("accuracy") else number(value)))
    if job["best"] is not None:
        alone = ", measured by one node alone" if _is_of_one(job) else ""
        rows.append(("best", f"{percent(job['best']['accuracy'])} at version {job['best']['version']}{alone}"))
    if job.get("model"):
        rows.append(("model", f"{job['model']['parameters']:,} parameters, {size(job['model']['bytes'])}"))
    if base := job.get("base_model"):
        held = "not uploaded" if base["bytes"] is None else size(base["bytes"])
        rows.append(("base model", f"{base['digest'][:12]}, {held}, held by {base['nodes']} of {job['members']} nodes"))
    rows.append(("traffic", f"{size(job['up_bytes'])} up, {size(job['down_bytes'])} down"))
    return pairs(rows)


def _taking_part(job: dict[str, Any]) -> str:
    """Return the number of nodes that take part, and of those that the job's selection excludes."""
    others = job.get("members", 0) - job["nodes"]
    return str(job["nodes"]) + (f" [dim]({others} more are excluded)[/]" if others > 0 else "")


def node_table(nodes: list[dict[str, Any]]) -> Table:
    """Return a table of a job's nodes."""
    columns = ("node", "state", "reports", "weight", "duration", "accuracy", "up", "down")
    rows = table(*columns, right=_NODE_NUMERIC, spare=("weight", "duration"))
    for node in nodes:
        rows.add_row(
            node["name"],
            state(node["state"]) + _apart(node),
            str(node["reports"]),
            number(node.get("weight")),
            seconds(node.get("seconds")),
            percent(node["metrics"].get("eval/accuracy")),
            size(node["up_bytes"]),
            size(node["down_bytes"]),
        )
    return rows


def _apart(node: dict[str, Any]) -> str:
    """Return why a node is not asked, or not reachable for the coordinator."""
    if node.get("excluded_text"):
        return f" [yellow](excluded: {safe(node['excluded_text'])})[/]"
    return " [yellow](gossip)[/]" if node.get("is_gossiping") else ""


_NODE_NUMERIC = ("reports", "weight", "duration", "accuracy", "up", "down")


def event_table(events: list[dict[str, Any]]) -> Table:
    """Return a table of job events, oldest first."""
    rows = table("time", "version", "kind", "text", right=["version"], prose=["text"])
    for event in events:
        rows.add_row(event["at"][11:19], str(event["version"]), event["kind"], safe(event["text"]))
    return rows


def split_table(jobs: list[dict[str, Any]]) -> Table:
    """Return a table of split jobs."""
    columns = ("split job", "state", "round", "loss", "turn", "step up", "step down", "up", "down")
    rows = table(*columns, right=("round", "loss", "step up", "step down", "up", "down"), spare=("turn",))
    for job in jobs:
        rows.add_row(
            job["name"],
            state(job["state"]),
            f"{job['round']} of {job['spec']['rounds']}",
            number(job["metrics"].get("train/loss")),
            safe(_turn(job)),
            *(size(job[key]) for key in ("step_up_bytes", "step_down_bytes", "up_bytes", "down_bytes")),
        )
    return rows


def _turn(job: dict[str, Any]) -> str:
    """Return the nodes that have a turn in a split job."""
    return ", ".join(one["name"] for one in job["nodes"] if one["turn_batches"] is not None)


def split_summary(job: dict[str, Any]) -> Table:
    """Return a split job in a few lines."""
    why = f" [dim]({safe(job['ended'])})[/]" if job["ended"] else ""
    rows = [("split job", job["name"]), ("state", state(job["state"]) + why)]
    rows += [("round", f"{job['round']} of {job['spec']['rounds']}"), ("turn", safe(_turn(job)) or "-")]
    rows += [(safe(name), number(value)) for name, value in sorted(job["metrics"].items())]
    rows.append(("step", f"{size(job['step_up_bytes'])} up, {size(job['step_down_bytes'])} down, by formula"))
    if job["versions"] and (last := job["versions"][-1])["batches"]:
        up, down = (size(round(last[f"{way}_bytes"] / last["batches"])) for way in ("up", "down"))
        rows.append(
            ("sent", f"{up} up, {down} down for each step of round {last['number']}, with parts and HTTP heads")
        )
    rows.append(("traffic", f"{size(job['up_bytes'])} up, {size(job['down_bytes'])} down"))
    return pairs(rows)


def split_node_table(job: dict[str, Any]) -> Table:
    """Return a table of a split job's nodes."""
    rows = table("node", "turn", "excluded", right=["turn"], prose=["excluded"])
    for node in job["nodes"]:
        batches = node["turn_batches"]
        rows.add_row(node["name"], "-" if batches is None else f"{batches} steps", safe(node["excluded"]))
    return rows


app.command()(peers)


@app.command("pause")
def pause(job: Job, why: Why = "", url: Url = None, token: Token = None) -> None:
    """Pause a job: nodes get no new tasks; their current tasks still count."""
    _act("pause", job, {"why": why}, url, token)


@app.command("resume")
def resume(job: Job, why: Why = "", url: Url = None, token: Token = None) -> None:
    """Resume a paused job."""
    _act("resume", job, {"why": why}, url, token)


@app.command("stop")
def stop(
    job: Job,
    when: Annotated[
        Literal["now", "round"], typer.Option(help="at once, or after the current round has closed")
    ] = "now",
    why: Why = "",
    url: Url = None,
    token: Token = None,
) -> None:
    """End a job for good. Its models and metrics stay."""
    _act("stop", job, {"why": why, "when": when}, url, token)


def _act(verb: str, job: str, body: dict[str, str], url: str | None, token: str | None) -> None:
    from shoal.cli.connection import connect
    from shoal.client.api import segment

    with connect(url, token) as api:
        found = api.post(f"/jobs/{segment(job)}/{verb}", body)
    out.answer({"job": found}, summary(found))


@app.command("remove")
def remove(job: Job, yes: Yes = False, url: Url = None, token: Token = None) -> None:
    """Remove a job that has ended, for good: its models, metrics, reports, events and logs.

    Example: shoal jobs stop digits && shoal jobs remove digits --yes
    """
    from shoal.cli.commands.nodes import confirm
    from shoal.cli.connection import connect
    from shoal.client.api import segment

    with connect(url, token) as api:
        path = f"/jobs/{segment(job)}"
        found = api.get(path)
        if found["ended_at"] is None:
            hint = f"stop it first: shoal jobs stop {job}"
            raise ShoalError(f"job {job} has not ended, so it is not removed", code="job.active", hint=hint)
        confirm(
            f"Remove {safe(job)} for good, with its {found['version']} versions, their models and all records?", yes
        )
        api.delete(path)
    out.answer({"removed": job}, f"{safe(job)} is removed")


@app.command("set")
def set_values(
    job: Job,
    values: Annotated[
        list[str], typer.Argument(metavar="SETTING...", help="KEY=VALUE, as in the job file", show_default=False)
    ],
    why: Why = "",
    url: Url = None,
    token: Token = None,
) -> None:
    """Change settings of a job that runs, from its next round on: learning rate, batch size, epochs, deadline, rounds …

    Example: shoal jobs set digits algorithm.lr=0.05 --why "the loss stagnates"

    Settings on which the model or its history depends cannot change: clone the job instead.
    """
    from shoal.cli.connection import connect
    from shoal.cli.terminal.values import assignments
    from shoal.client.api import segment

    wanted = assignments(values, "KEY=VALUE")
    for key, value in wanted.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            hint = "change other keys in a clone: shoal jobs clone JOB --set KEY=VALUE"
            raise ShoalError(f"{key}: {value!r} is not a finite number", code="usage.invalid", hint=hint)
    with connect(url, token) as api:
        found = api.patch(f"/jobs/{segment(job)}", {"values": wanted, "why": why})
    out.answer({"job": found}, summary(found))


@app.command("tag")
def tag(
    job: Job,
    tags: Annotated[
        list[str] | None, typer.Argument(metavar="[TAG]...", help="tags to add", show_default=False)
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="tag to remove; repeatable", show_default=False)
    ] = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Add or remove tags of a job. List tagged jobs by: shoal jobs list --tag TAG"""
    from shoal.cli.connection import connect
    from shoal.client.api import segment

    path = f"/jobs/{segment(job)}"
    with connect(url, token) as api:
        had = api.get(path).get("tags", [])
        found = api.put(f"{path}/tags", {"tags": sorted({*had, *(tags or [])} - set(remove or []))})
    out.answer({"job": found}, ", ".join(safe(one) for one in found["tags"]) or f"{job} has no tags")
