"""`shoal switch`: hand a running job to its nodes, or call it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from shoal.cli.commands.jobs import summary
from shoal.cli.terminal.options import Job, Token, Url, Why, spread
from shoal.cli.terminal.output import out

To = Annotated[
    Literal["gossip", "server"],
    typer.Argument(metavar="MODE", help="gossip: nodes continue as peers; server: they hand the job back"),
]


@dataclass(frozen=True)
class SignedSwitchOptions:
    """Options for a command that bypasses the coordinator."""

    via: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="a node's address as a peer; the coordinator is not asked", show_default=False
        ),
    ] = None
    key: Annotated[
        Path | None, typer.Option(help="with --via: the coordinator's key, DATA/coordinator.pem", show_default=False)
    ] = None


@spread
def switch(
    job: Job,
    to: To,
    *,
    signed: SignedSwitchOptions,
    why: Why = "",
    wait: Annotated[bool, typer.Option("--wait", help="wait until the job is in that mode")] = False,
    timeout_s: Annotated[
        float | None,
        typer.Option(min=0.0, help="seconds to wait; then exit with 4, while the switch continues", show_default=False),
    ] = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Switch a running job to mode gossip (its nodes continue as peers) or back to mode server.

    The job file must permit it: allowed = true in the table gossip. On the way back, the models of the nodes become the
    next version.

    --via sends a switch signed with the coordinator's key to any node that misses the coordinator. That node tells the
    others, and they do not wait for a quorum.
    """
    from shoal.cli.commands.follow import follow
    from shoal.cli.connection import connect
    from shoal.client.api import segment
    from shoal.client.followed_job import unfinished

    if signed.via is not None:
        sent = send_switch(job, to, why, signed)
        out.answer(
            {"sent": sent},
            f"{signed.via} continues {job} from version {sent['base_version']} and informs the other nodes",
        )
        return
    with or_by_a_node(job, to), connect(url, token) as api:
        found = api.post(f"/jobs/{segment(job)}/switch", {"to": to, "why": why})
        if wait and found["mode"] != to:
            found = follow(
                api, found, timeout_s=timeout_s, enough=lambda seen: seen["mode"] == to, what=f"switched to {to}"
            )
            if found["mode"] != to:
                raise unfinished(found)
    out.answer({"job": found}, summary(found))


@contextmanager
def or_by_a_node(job: str, to: str) -> Iterator[None]:
    """Add a hint to use --via when the coordinator is unreachable."""
    from shoal.core.errors import Unreachable

    try:
        yield
    except Unreachable as error:
        if to == "gossip":
            error.hint += (
                f"; if it is dead: shoal switch {job} gossip --via PEER_URL --key DATA/coordinator.pem, with the "
                "address of a node that joined with --peer-listen, and the key in the coordinator's data folder"
            )
        raise


def send_switch(job: str, to: str, why: str, signed: SignedSwitchOptions) -> dict[str, Any]:
    """Sign a switch to gossip, send it to a peer, and return it. Raises `ShoalError`."""
    from dataclasses import asdict

    from shoal.client.api import segment
    from shoal.core.errors import ShoalError
    from shoal.runtime.http.client import Link
    from shoal.trust.documents import ModeRecord, charter_of, sign_document
    from shoal.trust.keys import load_key

    via, key = signed.via, signed.key
    if via is None or key is None:
        hint = "give --key DATA/coordinator.pem, from the coordinator's data folder"
        raise ShoalError("--via needs the key that signs the switch", code="usage.missing", hint=hint)
    if to == "server":
        hint = "start the coordinator: its nodes then hand the job back"
        raise ShoalError("nodes hand a job back only to a running coordinator", code="mode.server", hint=hint)
    signer = load_key(key)
    path = f"/p2p/{segment(job)}"
    with Link(via) as link:
        charter = charter_of(link.json("GET", f"{path}/charter", own=True))
        status = link.json("GET", f"{path}/status", own=True)
        if signer.public_key not in (charter.operator_public_key, charter.coordinator_public_key):
            hint = f"its charter names {charter.operator_public_key}"
            raise ShoalError(f"{key} is not the key of {job}", code="mode.key", hint=hint)
        base = status.get("base") or {"version": 0, "sha256": "0" * 64}
        role: Any = "operator" if signer.public_key == charter.operator_public_key else "coordinator"
        record = ModeRecord(job, status["term"] + 1, 0, "gossip", base["version"], base["sha256"], why[:200], role)
        with link.exchange("POST", f"{path}/mode", content=sign_document(record, signer, charter), own=True) as answer:
            answer.read(0)
    return asdict(record)
