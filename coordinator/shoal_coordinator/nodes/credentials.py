"""Authentication. Credentials are random, shown once, and stored as SHA-256; a role says what they permit.

    node        its own tasks, reports and blobs            credential shn_…, exchanged for a one-time token sht_…
    viewer      everything that can be read
    operator    everything                                   token sho_…, or a session cookie

Access is denied by default: a route names the role that it needs. All principals are in memory, because this process is
the only writer: checking one costs a hash, and a revocation holds from the next request on.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Row, delete, insert, select, update

from shoal.core.errors import NotAllowed, Refused, StorageFailed
from shoal.core.protocol.machine import HUB
from shoal.runtime.durable_files import write_file
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.tables import nodes, tokens

Role = Literal["node", "viewer", "operator"]
PREFIXES = {"node": "shn_", "operator": "sho_", "viewer": "shv_", "token": "sht_", "session": "shs_"}
COOKIE = "shoal_session"
NO_CREDENTIAL = "vouched:"
"""Prefix of the stored secret of a node that is known by its key only (`reenrolment`). A hash is 64 hexadecimal
digits."""
REMOVED = "node.removed"
SESSION = "session"
"""The role of a session's row among the tokens."""
ID_LETTERS = 12
_KINDS = {
    "sht_": "a join token (sht_…)",
    "sho_": "an operator's token (sho_…)",
    "shv_": "a viewer's token (shv_…)",
    "shn_": "a node's credential (shn_…)",
}


def kind_of(secret: str) -> str:
    """Return what a secret is by its first letters, for people; empty where they say nothing."""
    return _KINDS.get(secret[:4], "")


def wrong_token_error(secret: str, known: Principal | None) -> NotAllowed | None:
    """Return the error for a secret with which no node can enrol, because it is of another kind."""
    kind = kind_of(secret) or ("another token" if known is not None else "")
    if not kind or (known is None and secret.startswith(PREFIXES["token"])):
        return None
    return NotAllowed(
        f"this is {kind}, and a node joins with a join token (sht_…)",
        code="token.kind",
        hint="an operator makes one: `shoal token create`",
    )


@dataclass(frozen=True)
class Principal:
    """The authenticated sender of a request. `name` is a node's name; empty for people."""

    role: Role
    name: str = ""
    expires_at: float | None = None

    def may(self, role: Role) -> bool:
        """Return whether this principal may act in a role. Operators may act as viewers."""
        return self.role == role or (self.role == "operator" and role == "viewer")


def hash_secret(secret: str) -> str:
    """Return the stored form of a credential."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_secret(kind: str) -> str:
    """Return a credential of 256 random bits."""
    return PREFIXES[kind] + secrets.token_urlsafe(32)


class Credentials:
    """All principals that may send requests."""

    def __init__(self) -> None:
        self._known: dict[str, Principal] = {}
        self._keys: dict[str, str] = {}
        """By node: the hash of its credential. A node has one."""
        self._operator = ""
        self._removed: set[str] = set()
        """Hashes of the credentials of nodes that operators have removed."""

    def load(self, connection: Connection, operator_token: str) -> None:
        """Load all principals, and the operators' own token; end sessions whose token is revoked."""
        self.clear(operator_token)
        for row in connection.execute(select(nodes)):
            self._take_node(row)
        people = connection.execute(select(tokens).where(tokens.c.role != "node")).all()
        for row in people:
            if row.role != SESSION:
                self.add(row.secret, _person(row))
        for row in people:
            if row.role == SESSION and row.parent in self._known:
                self.add(row.secret, _person(row))
            elif row.role == SESSION:
                connection.execute(delete(tokens).where(tokens.c.secret == row.secret))

    def look_up(self, connection: Connection, secret_hash: str) -> None:
        """Load the principal with that credential, if the database has it."""
        node = connection.execute(select(nodes).where(nodes.c.secret == secret_hash)).first()
        if node is not None:
            self._take_node(node)
        row = connection.execute(select(tokens).where(tokens.c.secret == secret_hash, tokens.c.role != "node")).first()
        if row is not None and (row.role != SESSION or self._has_parent(connection, row.parent)):
            self.add(secret_hash, _person(row))

    def _has_parent(self, connection: Connection, parent: str) -> bool:
        """Return whether the token with which a session was opened is still good."""
        known = select(tokens.c.secret).where(tokens.c.secret == parent)
        return parent == self._operator or connection.execute(known).first() is not None

    def _take_node(self, row: Row[Any]) -> None:
        if row.revoked:
            self._removed.add(row.secret)
        else:
            self.add(row.secret, Principal("node", row.name))

    def clear(self, operator_token: str) -> None:
        """Forget all principals except the operators."""
        self._operator = hash_secret(operator_token)
        self._known, self._keys, self._removed = {self._operator: Principal("operator")}, {}, set()

    def principal_of(self, secret: str) -> Principal | None:
        """Return the owner of a credential; None if it is unknown, revoked or expired."""
        found = self._known.get(hash_secret(secret))
        if found is not None and found.expires_at is not None and found.expires_at < time.time():
            return None
        return found

    def rejection_of(self, secret: str) -> NotAllowed:
        """Return the error for a credential that `principal_of` does not know: what it is, and what to do."""
        if hash_secret(secret) in self._removed:
            return NotAllowed(
                "this node was removed by an operator",
                code=REMOVED,
                hint="enrol again with a new token (`shoal token create` makes one)",
            )
        if secret.startswith(PREFIXES["token"]):
            text = "this is a join token (sht_…): it lets a node in, and may do nothing else"
            return NotAllowed(text, hint="operators: see operator.token in the coordinator's data folder")
        return NotAllowed(
            f"this {kind_of(secret).partition(' ')[2] or 'credential'} is unknown, expired or revoked",
            hint="nodes: enrol again with a new token; operators: see operator.token in the coordinator's data folder",
        )

    def add(self, secret_hash: str, principal: Principal) -> None:
        """Add a credential; a node's earlier ones are removed."""
        if principal.role == "node":
            self.forget_node(principal.name)
            self._keys[principal.name] = secret_hash
        self._known[secret_hash] = principal

    def remove_node(self, name: str) -> None:
        """Forget a node's credential, and remember that an operator has removed it."""
        if name in self._keys:
            self._removed.add(self._keys[name])
        self.forget_node(name)

    def forget_node(self, name: str) -> None:
        key = self._keys.pop(name, None)
        if key is not None:
            self._known.pop(key, None)

    def forget(self, secret_hash: str) -> None:
        self._known.pop(secret_hash, None)


def _person(row: Row[Any]) -> Principal:
    role: Any = row.grants or row.role
    return Principal(role, "", row.expires_at)


def token_id(secret: str) -> str:
    """Return what a token is called in lists: its kind, and 48 of its 256 random bits."""
    return secret[:ID_LETTERS]


def add_token(connection: Connection, secret: str, role: str, name: str | None, uses: int, expires_at: float) -> None:
    """Keep a new token; expired ones go."""
    now = time.time()
    connection.execute(delete(tokens).where(tokens.c.expires_at < now))
    row = {"secret": hash_secret(secret), "id": token_id(secret), "role": role, "name": name, "created_at": now}
    connection.execute(insert(tokens).values({**row, "uses": uses, "uses_max": uses, "expires_at": expires_at}))


def list_tokens(connection: Connection) -> list[tuple[Row[Any], int]]:
    """Return the tokens that have not expired, the newest first, each with the number of sessions opened with it."""
    good = connection.execute(select(tokens).where(tokens.c.expires_at >= time.time())).all()
    sessions = Counter(row.parent for row in good if row.role == SESSION)
    made = [row for row in good if row.role != SESSION]
    return [(row, sessions[row.secret]) for row in sorted(made, key=lambda row: row.created_at, reverse=True)]


def revoke_token(connection: Connection, token: str) -> list[str]:
    """Delete a token by its id, and the sessions that were opened with it; return the hashes of all revoked ones.

    Raises `Refused` (`token.unknown`).
    """
    found = connection.execute(select(tokens.c.secret).where(tokens.c.id == token, tokens.c.role != SESSION)).scalar()
    if found is None:
        hint = "see `shoal token list`; it may have expired, or be revoked already"
        raise Refused(f"no token begins with {token!r}", code="token.unknown", hint=hint)
    mine = (tokens.c.secret == found) | (tokens.c.parent == found)
    gone = list(connection.execute(select(tokens.c.secret).where(mine)).scalars())
    connection.execute(delete(tokens).where(mine))
    return gone


def add_session(connection: Connection, secret: str, grants: str, expires_at: float, token: str) -> None:
    """Keep a browser's session, opened with a token; expired ones go."""
    now = time.time()
    connection.execute(delete(tokens).where(tokens.c.expires_at < now))
    row = {"secret": hash_secret(secret), "role": SESSION, "grants": grants, "uses": 0, "expires_at": expires_at}
    connection.execute(insert(tokens).values({**row, "created_at": now, "parent": hash_secret(token)}))


def end_session(connection: Connection, secret: str) -> None:
    """Forget a browser's session."""
    connection.execute(delete(tokens).where(tokens.c.secret == hash_secret(secret)))


def credential_of(token: str, key: str) -> str:
    """Return a node's credential: random, or the same again for the same token and the node's own random key."""
    if not key:
        return new_secret("node")
    mixed = hmac.digest(key.encode(), token.encode(), "sha256")
    return PREFIXES["node"] + base64.urlsafe_b64encode(mixed).rstrip(b"=").decode()


def enrol(connection: Connection, token: str, name: str, info: dict[str, Any], key: str = "") -> str:
    """Spend one use of a token and make the node's credential, in one transaction: one token, one node, races too.

    `key`: who enrols again with the same one, because the answer was lost, gets the same credential again. Raises
    `NotAllowed` for a token that is wrong, spent, expired or another node's, `Refused` for a name that is taken or that
    no node may have.
    """
    if name == HUB:
        raise Refused(
            f"no node may be called {HUB}: that is what messages call the coordinator's side",
            code="node.reserved",
            hint="choose another --name",
        )
    secret, now = credential_of(token, key), time.time()
    again = select(nodes).where(nodes.c.name == name, nodes.c.secret == hash_secret(secret), ~nodes.c.revoked)
    if connection.execute(again).first() is not None:
        return secret
    row = connection.execute(
        select(tokens).where(tokens.c.secret == hash_secret(token), tokens.c.role == "node")
    ).first()
    if row is None or row.uses < 1 or (row.expires_at is not None and row.expires_at < time.time()):
        raise NotAllowed(
            "the enrolment token is wrong, spent or expired",
            code="token.invalid",
            hint="ask an operator for a new one (`shoal token create`)",
        )
    if row.name is not None and row.name != name:
        raise NotAllowed(
            f"this token enrols {row.name}, not {name}", code="token.invalid", hint=f"use --name {row.name}"
        )
    taken = connection.execute(select(nodes).where(nodes.c.name == name)).first()
    if taken is not None and not taken.revoked and not taken.secret.startswith(NO_CREDENTIAL):
        raise Refused(
            f"a node called {name} exists",
            code="node.exists",
            hint="choose another --name, or use the state folder of that node, or remove it (`shoal nodes remove`)",
        )
    connection.execute(update(tokens).where(tokens.c.secret == row.secret).values(uses=row.uses - 1))
    connection.execute(delete(nodes).where(nodes.c.name == name))
    values = {
        "name": name,
        "secret": hash_secret(secret),
        "joined_at": now,
        "last_hello_at": now,
        "info": info,
        "revoked": False,
    }
    connection.execute(insert(nodes).values(values))
    return secret


def revoke(connection: Connection, name: str) -> bool:
    """Take a node's credential away; False when there is no such node."""
    result = connection.execute(update(nodes).where(nodes.c.name == name, ~nodes.c.revoked).values(revoked=True))
    return bool(result.rowcount)


def operator_token(settings: Settings) -> str:
    """Return the operators' token: the setting, or the content of a file that the first start creates."""
    if settings.operator_token:
        return settings.operator_token
    path = settings.data / "operator.token"
    try:
        known = path.read_text().strip() if path.exists() else ""
        if known:  # an empty token would let any client in
            return known
        settings.data.mkdir(parents=True, exist_ok=True)
        token = new_secret("operator")
        write_file(path, f"{token}\n".encode(), "token")
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror}", hint="choose another folder with --data") from None
    return token
