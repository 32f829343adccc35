"""`shoal switch`: a running job goes to its nodes, or comes back to the coordinator."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from shoal.cli.jobs import summary
from shoal.cli.options import Job, Token, Url, Why
from shoal.cli.output import out

REACHED = {"gossip": "away", "server": "server"}
"""The mode that a job is in when it is where it was sent."""

To = Annotated[
    Literal["gossip", "server"],
    typer.Argument(metavar="WHERE", help="gossip: the nodes carry on by themselves; server: they hand it back"),
]


def switch(
    job: Job,
    to: To,
    why: Why = "",
    wait: Annotated[bool, typer.Option("--wait", help="wait until the job is there")] = False,
    timeout_s: Annotated[
        float | None,
        typer.Option(min=0.0, help="seconds to wait; then exit with 4, while the switch goes on", show_default=False),
    ] = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Let the nodes carry a running job on without the coordinator, or have them hand it back.

    Nothing is lost: what nodes learn meanwhile becomes the next version when the job comes back. The job file must
    allow it, with allowed = true in its table gossip.
    """
    from shoal.cli.api import connect, segment
    from shoal.cli.follow import follow
    from shoal.core.errors import ShoalError

    wanted = REACHED[to]
    with connect(url, token) as api:
        found = api.post(f"/jobs/{segment(job)}/switch", {"to": to, "why": why})
        if wait and found["mode"] != wanted:
            found = follow(
                api, found, timeout_s=timeout_s, enough=lambda seen: seen["mode"] == wanted, what=f"switched to {to}"
            )
            if found["mode"] != wanted:
                raise ShoalError(
                    f"{job} is {found['state']}: {found['state_why']}",
                    code=f"job.{found['state']}",
                    hint=f"shoal jobs show {job} --notes 50",
                )
    out.answer({"job": found}, summary(found))
