"""`shoal switch`: a running job goes to its nodes, or comes back to the coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from shoal.cli.jobs import summary
from shoal.cli.options import Job, Token, Url, Why, spread
from shoal.cli.output import out

REACHED = {"gossip": "away", "server": "server"}
"""The mode that a job is in when it is where it was sent."""

To = Annotated[
    Literal["gossip", "server"],
    typer.Argument(metavar="WHERE", help="gossip: the nodes carry on by themselves; server: they hand it back"),
]


@dataclass(frozen=True)
class Word:
    """An operator's word that goes past the coordinator."""

    via: Annotated[
        str | None,
        typer.Option(metavar="URL", help="a node's address as a peer: no coordinator is asked", show_default=False),
    ] = None
    key: Annotated[
        Path | None, typer.Option(help="with --via: the coordinator's key, DATA/coordinator.pem", show_default=False)
    ] = None


@spread
def switch(
    job: Job,
    to: To,
    *,
    word: Word,
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

    With --via, a word signed with the coordinator's key is brought to any node that misses its coordinator, and goes
    from there to the others: nobody waits for votes.
    """
    from shoal.cli.api import connect, segment
    from shoal.cli.follow import follow
    from shoal.core.errors import ShoalError

    if word.via is not None:
        sent = send_away(job, to, why, word)
        out.answer(
            {"sent": sent}, f"{word.via} carries {job} on from version {sent['base_version']}, and tells the others"
        )
        return
    wanted = REACHED[to]
    with or_by_a_node(job, to), connect(url, token) as api:
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


@contextmanager
def or_by_a_node(job: str, to: str) -> Iterator[None]:
    """Where the coordinator cannot be reached, say how its nodes can be sent away all the same."""
    from shoal.core.errors import Unreachable

    try:
        yield
    except Unreachable as error:
        if to == "gossip":
            error.hint += f"; if it is dead: shoal switch {job} gossip --via URL-OF-A-NODE --key DATA/coordinator.pem"
        raise


def send_away(job: str, to: str, why: str, word: Word) -> dict[str, Any]:
    """Sign an operator's word, and bring it to a peer; what was signed. Raises `ShoalError`."""
    from dataclasses import asdict

    from shoal.cli.api import segment
    from shoal.core.errors import ShoalError
    from shoal.runtime.http import Link
    from shoal.trust.keys import load_key
    from shoal.trust.papers import ModeRecord, charter_of, seal

    via, key = word.via, word.key
    if via is None or key is None:
        hint = "give --key DATA/coordinator.pem, from the coordinator's data folder"
        raise ShoalError("a word that nobody has signed moves no job", code="usage.missing", hint=hint)
    if to == "server":
        hint = "start the coordinator: its nodes hand the job back by themselves"
        raise ShoalError("a job comes back when its coordinator does", code="mode.server", hint=hint)
    signer = load_key(key)
    path = f"/p2p/{segment(job)}"
    with Link(via) as link:
        charter = charter_of(link.json("GET", f"{path}/charter", own=True))
        status = link.json("GET", f"{path}/status", own=True)
        if signer.pub not in (charter.operator_pub, charter.coordinator_pub):
            hint = f"its charter names {charter.operator_pub}"
            raise ShoalError(f"{key} is not the key of {job}", code="mode.key", hint=hint)
        base = status.get("base") or {"version": 0, "sha256": "0" * 64}
        role: Any = "operator" if signer.pub == charter.operator_pub else "coordinator"
        record = ModeRecord(job, status["term"] + 1, 0, "gossip", base["version"], base["sha256"], why[:200], role)
        with link.exchange("POST", f"{path}/mode", content=seal(record, signer, charter), own=True) as answer:
            answer.read(0)
    return asdict(record)
