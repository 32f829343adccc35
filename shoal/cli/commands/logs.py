"""`shoal logs`: logs of nodes and the coordinator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shoal.cli.terminal.options import Token, Url
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import safe

if TYPE_CHECKING:
    from shoal.client.api import CoordinatorApi

EVERY_S = 1.0
"""Seconds between two requests for new lines."""
PAGE = 1000
COLORS = {"debug": "dim", "warning": "yellow", "error": "red", "critical": "bold red"}
Level = Literal["debug", "info", "warning", "error"]


def logs(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="only this job", show_default=False)] = None,
    node: Annotated[
        str | None, typer.Option(help='only this node; "": the coordinator itself', show_default=False)
    ] = None,
    level: Annotated[Level, typer.Option(help="lowest level")] = "info",
    limit: Annotated[int, typer.Option(min=1, max=5000, help="number of lines, newest first")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="continue with new lines until Ctrl-C")] = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show logs of nodes and the coordinator, oldest first. With --follow and --json: one JSON object per batch.

    Example: shoal logs digits --node clinic-a --level warning --follow
    """
    from shoal.cli.connection import connect
    from shoal.client.api import segment

    wanted = {name: value for name, value in (("job", job), ("node", node), ("level", level)) if value is not None}
    with connect(url, token) as api:
        for lines in _batches(api, wanted, limit, follow=follow):
            if not lines and job is not None:
                api.get(f"/jobs/{segment(job)}")  # says so where there is no such job
            out.answer({"logs": lines}, "\n".join(map(_shown, lines)) if lines else "no log lines")


def _batches(
    api: CoordinatorApi, wanted: dict[str, str], limit: int, *, follow: bool
) -> Iterator[list[dict[str, Any]]]:
    """Yield the newest lines, then new lines as they arrive."""
    found = api.get("/logs", limit=limit, **wanted)["lines"]
    if not follow:
        yield found
        return
    last = 0
    for turn in count():
        if found:
            last = found[-1]["id"]
            yield found
        if len(found) < PAGE or not turn:
            time.sleep(EVERY_S)
        found = api.get("/logs", after=last, limit=PAGE, **wanted)["lines"]


def _shown(line: dict[str, Any]) -> str:
    at, level = line["at"][11:23], line["level"]
    color = COLORS.get(level)
    level_text = f"[{color}]{level:<7}[/]" if color else f"{level:<7}"
    about = {**({"round": line["round"]} if line["round"] is not None else {}), **line["fields"]}
    rest = " ".join(f"{safe(name)}={safe(value)}" for name, value in about.items())
    where = safe(line["node"] or "coordinator") + (f" {safe(line['job'])}" if line["job"] else "")
    return f"[dim]{at}[/] {level_text} [bold]{where}[/] {safe(line['text'])}" + (f" [dim]{rest}[/]" if rest else "")
