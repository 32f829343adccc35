"""Re-enrolment: nodes that a coordinator with an empty disk knows by their keys alone.

The coordinator's key has signed the roster with which the job continues, so its nodes are known by name, key and
address, but not by a credential. Such a node stands in the table of nodes with a secret that is not a hash. It makes a
new credential itself, and sends its SHA-256 under its own signature; so the answer contains no secret, and a replayed
request gains nothing.
"""

from __future__ import annotations

import time

from sqlalchemy import Connection, insert, select, update

from shoal.core.errors import NotAllowed, Refused
from shoal.trust.documents import Roster, RosterEntry
from shoal_coordinator.nodes.credentials import NO_CREDENTIAL
from shoal_coordinator.storage.dialects import insert as insert_or_keep
from shoal_coordinator.storage.tables import nodes, revoked_keys


def add_roster(connection: Connection, roster: Roster) -> tuple[str, ...]:
    """Add a roster's nodes and revoked keys; return the names of its peers that are known here by those keys.

    A node whose name or key is taken or revoked here must enrol with a token.
    """
    out = set(connection.execute(select(revoked_keys.c.peer_id)).scalars()) | set(roster.revoked_peer_ids)
    now = time.time()
    for peer_id in roster.revoked_peer_ids:
        row = {"peer_id": peer_id, "node": "", "at": now}
        connection.execute(insert_or_keep(revoked_keys).on_conflict_do_nothing(), row)
    known = {row.name: row.peer["public_key"] if row.peer else "" for row in connection.execute(select(nodes))}
    for peer in roster.peers:
        if peer.peer_id not in out and peer.node not in known and peer.public_key not in known.values():
            connection.execute(insert(nodes).values(_row(peer, now)))
            known[peer.node] = peer.public_key
    live = set(connection.execute(select(nodes.c.name).where(~nodes.c.revoked)).scalars())
    return tuple(peer.node for peer in roster.peers if peer.node in live and known[peer.node] == peer.public_key)


def _row(peer: RosterEntry, now: float) -> dict[str, object]:
    shown = {"public_key": peer.public_key, "urls": list(peer.urls), "is_reachable": peer.is_reachable}
    row: dict[str, object] = {"name": peer.node, "secret": NO_CREDENTIAL + peer.peer_id, "peer": shown, "info": {}}
    return {**row, "joined_at": now, "last_hello_at": now, "revoked": False}


def reenrol(connection: Connection, node: str, public_key: str, secret_sha256: str) -> None:
    """Set that node's credential to this SHA-256. Idempotent.

    Raises `NotAllowed` (`node.removed`), and `Refused` (`node.exists`) if another node has that credential.
    """
    row = connection.execute(select(nodes).where(nodes.c.name == node)).first()
    if row is None or row.revoked or row.peer is None or row.peer["public_key"] != public_key:
        raise NotAllowed(
            f"{node} is not known here by this key, or was removed by an operator",
            code="node.removed",
            hint="enrol again with a new token",
        )
    taken = select(nodes.c.name).where(nodes.c.secret == secret_sha256, nodes.c.name != node)
    if connection.execute(taken).first() is not None:
        raise Refused("another node has that credential", code="node.exists", hint="make a random one")
    connection.execute(
        update(nodes).where(nodes.c.name == node).values(secret=secret_sha256, last_hello_at=time.time())
    )
