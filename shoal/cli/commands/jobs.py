"""`shoal jobs`: what runs at a coordinator, and how it is going."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shoal.cli.options import Job, Token, Url, Why, Yes, hand_down
from shoal.cli.output import out
from shoal.cli.text import accuracy, number, pairs, percent, safe, seconds, size, state, table
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(help="Jobs at a coordinator: list, show, pause, resume, stop, set, clone, tag, remove.")


@app.callback(invoke_without_command=True)
def jobs(context: typer.Context, url: Url = None, token: Token = None) -> None:
    """Jobs at a coordinator: list, show, pause, resume, stop, set, clone, tag, remove. Alone: list."""
    hand_down(context, url=url, token=token)
    if context.invoked_subcommand is None:
        list_jobs(url=url, token=token)


@app.command("list")
def list_jobs(
    tag: Annotated[str, typer.Option(help="only those that have it", show_default=False)] = "",
    url: Url = None,
    token: Token = None,
) -> None:
    """List all jobs, with how far they are and how good."""
    from shoal.cli.api import connect

    with connect(url, token) as api:
        found = [job for job in api.every("/jobs", "jobs") if tag in ("", *job.get("tags", ()))]
    columns = ("job", "state", "version", "accuracy", "best", "nodes", "up", "down", "algorithm")
    rows = table(*columns, right=_NUMERIC, spare=("best", "nodes", "algorithm"))
    for job in found:
        rows.add_row(*_row(job))
    hint = f"no job has the tag {safe(tag)}" if tag else "no jobs yet: [bold]shoal run JOB.toml[/] submits one"
    out.answer({"jobs": found}, rows if found else hint)


_NUMERIC = ("version", "accuracy", "best", "nodes", "up", "down")


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    return (
        job["name"],
        state(job["state"]) + _elsewhere(job) + _waits(job),
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


def _elsewhere(job: dict[str, Any]) -> str:
    """Where a job is while it is not with the coordinator."""
    return "" if job["mode"] == "server" else f" [yellow]({job['mode']})[/]"


def _waits(job: dict[str, Any]) -> str:
    """What a job waits for that no node works for; who is not asked, `shoal jobs show` says."""
    return f" [yellow]({safe(job['state_why'].partition(';')[0])})[/]" if job.get("idle") else ""


@app.command("show")
def show(
    job: Job,
    notes: Annotated[int, typer.Option(min=0, max=1000, help="decisions and events to show, newest last")] = 10,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show one job: progress, metrics, nodes, bytes, and what was decided last, with the reasons."""
    from shoal.cli.api import connect, segment

    with connect(url, token) as api:
        path = f"/jobs/{segment(job)}"
        found = api.get(path)
        nodes = api.get(f"{path}/nodes")["nodes"]
        said = api.get(f"{path}/notes", limit=max(notes, 1))["notes"] if notes else []
        traffic = api.get(f"{path}/traffic", by="kind")
    data = {"job": found, "nodes": nodes, "notes": said[-notes:] if notes else [], "traffic": traffic}
    parts: list[Any] = [summary(found)]
    if nodes:
        parts.append(node_table(nodes))
    if data["notes"]:
        parts.append(note_table(data["notes"]))
    out.answer(data, *parts)


def made(job: dict[str, Any]) -> str:
    """How many versions there are, and of how many; where they come as they like, nobody knows that."""
    return f"{job['version']} of {job['versions']}" if job["versions"] else str(job["version"])


MODES = {"server": "with the coordinator", "away": "with its nodes", "returning": "on its way to the coordinator"}


def summary(job: dict[str, Any]) -> Table:
    """A job in a few lines."""
    rows = [("job", job["name"] + (f": {safe(job['title'])}" if job["title"] not in ("", job["name"]) else ""))]
    style, waits = ("yellow", "waits: ") if job.get("idle") else ("dim", "")
    why = f" [{style}]({waits}{safe(job['state_why'])})[/]" if job["state_why"] else ""
    rows += [("state", state(job["state"]) + why)]
    if job.get("headline"):
        rows += [("now", safe(job["headline"]))]
    if job.get("mode_since"):
        since = job["mode_since"][:19].replace("T", " ")
        rows += [("mode", f"{job['mode']}: {MODES[job['mode']]} [dim](since {since} UTC)[/]")]
    if job.get("rebuilt"):
        where = "from {node} at version {version}, term {term}".format(**job["rebuilt"])
        rows += [("rebuilt", f"{safe(where)} [dim](what was before is not known here)[/]")]
    left = f", about {seconds(job['eta_s'])} left" if job.get("eta_s") else ""
    rows += [("version", made(job) + left)]
    rows += [("algorithm", f"{job['algorithm']} / {job['schedule']}"), ("nodes", _taking_part(job))]
    for name, text in (("changed", "changed"), ("awaited", "next round")):
        if job.get(name):
            rows.append((text, safe(", ".join(f"{key} = {value:g}" for key, value in job[name].items()))))
    if job.get("tags"):
        rows.append(("tags", safe(", ".join(job["tags"]))))
    if job["metrics"]:
        of = f"version {job['measured']}" if job.get("measured") is not None else "the newest version"
        part = job.get("provisional")
        waits = f", {part['reported']} of the {part['asked']} nodes that measure it so far" if part else ""
        rows.append(("measured", f"{of}{waits}"))
    for name, value in sorted(job["metrics"].items()):
        rows.append((safe(name), percent(value) if name.endswith("accuracy") else number(value)))
    if job["best"] is not None:
        alone = ", measured by one node alone" if _is_of_one(job) else ""
        rows.append(("best", f"{percent(job['best']['accuracy'])} at version {job['best']['version']}{alone}"))
    if job.get("model"):
        rows.append(("model", f"{job['model']['parameters']:,} parameters, {size(job['model']['bytes'])}"))
    rows.append(("bytes", f"{size(job['up_bytes'])} up, {size(job['down_bytes'])} down"))
    return pairs(rows)


def _taking_part(job: dict[str, Any]) -> str:
    """How many nodes take part, and how many others have joined that the job's selection leaves out."""
    others = job.get("members", 0) - job["nodes"]
    return str(job["nodes"]) + (f" [dim]({others} more have joined and are left out)[/]" if others > 0 else "")


def node_table(nodes: list[dict[str, Any]]) -> Table:
    """A job's nodes."""
    columns = ("node", "state", "reports", "weight", "seconds", "accuracy", "up", "down")
    rows = table(*columns, right=_NODE_NUMERIC, spare=("weight", "seconds"))
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
    """Why a node is not with the coordinator, or not asked."""
    if node.get("left_out"):
        return f" [yellow](left out: {safe(node['left_out'])})[/]"
    return " [yellow](away)[/]" if node.get("away") else ""


_NODE_NUMERIC = ("reports", "weight", "seconds", "accuracy", "up", "down")


def note_table(notes: list[dict[str, Any]]) -> Table:
    """What happened, oldest first."""
    rows = table("at", "version", "kind", "what", right=["version"], prose=["what"])
    for note in notes:
        rows.add_row(note["at"][11:19], str(note["version"]), note["kind"], safe(note["text"]))
    return rows


@app.command("pause")
def pause(job: Job, why: Why = "", url: Url = None, token: Token = None) -> None:
    """Ask nothing new of the nodes; what they are at still counts."""
    _act("pause", job, {"why": why}, url, token)


@app.command("resume")
def resume(job: Job, why: Why = "", url: Url = None, token: Token = None) -> None:
    """Go on with a paused job."""
    _act("resume", job, {"why": why}, url, token)


@app.command("stop")
def stop(
    job: Job,
    when: Annotated[Literal["now", "round"], typer.Option(help="at once, or when the round has closed")] = "now",
    why: Why = "",
    url: Url = None,
    token: Token = None,
) -> None:
    """End a job for good. Its models and metrics stay."""
    _act("stop", job, {"why": why, "when": when}, url, token)


def _act(verb: str, job: str, body: dict[str, str], url: str | None, token: str | None) -> None:
    from shoal.cli.api import connect, segment

    with connect(url, token) as api:
        found = api.post(f"/jobs/{segment(job)}/{verb}", body)
    out.answer({"job": found}, summary(found))


@app.command("remove")
def remove(job: Job, yes: Yes = False, url: Url = None, token: Token = None) -> None:
    """Remove a job that has ended, for good: its models, metrics, reports, events and logs.

    Example: shoal jobs stop digits && shoal jobs remove digits --yes
    """
    from shoal.cli.api import connect, segment
    from shoal.cli.nodes import confirm

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

    Example: shoal jobs set digits algorithm.lr=0.05 --why "the loss stands still"

    What the model or its history depends on cannot be changed: clone the job for that.
    """
    from shoal.cli.api import connect, segment
    from shoal.cli.values import assignments

    wanted = assignments(values, "KEY=VALUE")
    for key, value in wanted.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            hint = "what is no number is changed in a clone: shoal jobs clone JOB --set KEY=VALUE"
            raise ShoalError(f"{key}: {value!r} is no number", code="usage.invalid", hint=hint)
    with connect(url, token) as api:
        found = api.patch(f"/jobs/{segment(job)}", {"values": wanted, "why": why})
    out.answer({"job": found}, summary(found))


@app.command("tag")
def tag(
    job: Job,
    tags: Annotated[list[str] | None, typer.Argument(metavar="[TAG]...", help="to add", show_default=False)] = None,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="to take away; may be given again", show_default=False)
    ] = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Give a job tags, or take some away. Everybody sees them: shoal jobs list --tag TAG"""
    from shoal.cli.api import connect, segment

    path = f"/jobs/{segment(job)}"
    with connect(url, token) as api:
        had = api.get(path).get("tags", [])
        found = api.put(f"{path}/tags", {"tags": sorted({*had, *(tags or [])} - set(remove or []))})
    out.answer({"job": found}, ", ".join(safe(one) for one in found["tags"]) or f"{job} has no tags")
