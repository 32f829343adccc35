"""Nodes that a coordinator with an empty disk knows by their keys alone, and how they get a credential again.

Its own key has signed the roster that the job goes on with, so everybody in it is known: by name, key and address, but
not by a credential. Such a node stands in the table of nodes under a secret that is nobody's hash. It makes a new
credential itself, and says its SHA-256 under its own signature; so no secret is in the answer, and whoever repeats the
request gets nothing for it.
"""

from __future__ import annotations

import time

from sqlalchemy import Connection, insert, select, update

from shoal.core.errors import NotAllowed, Refused
from shoal.trust.papers import Peer, Roster
from shoal_coordinator.auth import NO_CREDENTIAL
from shoal_coordinator.dialects import insert as insert_or_keep
from shoal_coordinator.tables import nodes, revoked_keys


def vouch(connection: Connection, roster: Roster) -> tuple[str, ...]:
    """Write down who is in a roster, and which keys are out; the names of its peers that are known here by those keys.

    Whose name or key is taken here, or was revoked here, must enrol with a token.
    """
    out = set(connection.execute(select(revoked_keys.c.peer_id)).scalars()) | set(roster.revoked)
    now = time.time()
    for peer_id in roster.revoked:
        row = {"peer_id": peer_id, "node": "", "at": now}
        connection.execute(insert_or_keep(revoked_keys).on_conflict_do_nothing(), row)
    known = {row.name: row.peer["pub"] if row.peer else "" for row in connection.execute(select(nodes))}
    for peer in roster.peers:
        if peer.peer_id not in out and peer.node not in known and peer.pub not in known.values():
            connection.execute(insert(nodes).values(_row(peer, now)))
            known[peer.node] = peer.pub
    live = set(connection.execute(select(nodes.c.name).where(~nodes.c.revoked)).scalars())
    return tuple(peer.node for peer in roster.peers if peer.node in live and known[peer.node] == peer.pub)


def _row(peer: Peer, now: float) -> dict[str, object]:
    shown = {"pub": peer.pub, "urls": list(peer.urls), "inbound": peer.inbound}
    row: dict[str, object] = {"name": peer.node, "secret": NO_CREDENTIAL + peer.peer_id, "peer": shown, "info": {}}
    return {**row, "joined_at": now, "seen_at": now, "revoked": False}


def readmit(connection: Connection, node: str, pub: str, secret_sha256: str) -> None:
    """From now on that node's credential is the one of this SHA-256. Again is no harm.

    Raises `NotAllowed` (`node.removed`), and `Refused` (`node.exists`) where another node has that credential.
    """
    row = connection.execute(select(nodes).where(nodes.c.name == node)).first()
    if row is None or row.revoked or row.peer is None or row.peer["pub"] != pub:
        raise NotAllowed(
            f"{node} is not known here by this key, or was removed by an operator",
            code="node.removed",
            hint="enrol again with a new token",
        )
    taken = select(nodes.c.name).where(nodes.c.secret == secret_sha256, nodes.c.name != node)
    if connection.execute(taken).first() is not None:
        raise Refused("another node has that credential", code="node.exists", hint="make a random one")
    connection.execute(update(nodes).where(nodes.c.name == node).values(secret=secret_sha256, seen_at=time.time()))
