"""The operator's folder of a job without a server, as the one peer that admits newcomers uses it.

    FOLDER/operator.pem  job.toml  charter.json  roster.json     as `shoal peer init` writes them
    FOLDER/admitted.json     the peer ids that each invitation has brought in, by its serial number
    FOLDER/lock              held while the roster is changed, so that two processes never sign two of one version

An admission is the next version of the roster, with the newcomer in it. Its use is written down before the roster is:
after a crash in between, the same newcomer shows the same invitation and gets in, and the use is not counted twice.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.core.errors import InvalidJob, StorageFailed
from shoal.core.protocol.machine import HUB
from shoal.peering.roster.invitation import JoinRequest
from shoal.runtime.durable_files import storing, write_file
from shoal.trust.codes import refusal
from shoal.trust.documents import (
    PEERS_MAX,
    Charter,
    Invitation,
    Roster,
    RosterEntry,
    open_charter,
    sign_document,
    verify_document,
)
from shoal.trust.keys import SigningKey, load_key, peer_id_of
from shoal.validation.message_checks import NAME

SERIAL_BYTES = 16


@dataclass(frozen=True)
class RosterAdmission:
    """The folder of an operator, and the key in it. Its methods block."""

    folder: Path
    charter: Charter
    key: SigningKey

    @classmethod
    def open(cls, folder: Path) -> RosterAdmission:
        """Return the folder of an operator. Raises `InvalidJob`, `StorageFailed`."""
        for name in ("operator.pem", "charter.json", "roster.json", "job.toml"):
            if not (folder / name).is_file():
                hint = "give the folder that `shoal peer start` or `shoal peer init` has made"
                raise InvalidJob(f"no {name} in {folder}", code="peer.folder", hint=hint)
        with storing(folder):
            charter = open_charter((folder / "charter.json").read_bytes())
        return cls(folder, charter, load_key(folder / "operator.pem"))

    def invitation(self, uses: int, not_after: int, examples_max: int = 0) -> bytes:
        """Return a new invitation, signed."""
        serial = secrets.token_hex(SERIAL_BYTES)
        return sign_document(
            Invitation(self.charter.job, serial, uses, examples_max, not_after), self.key, self.charter
        )

    def roster(self) -> tuple[Roster, bytes]:
        """Return the newest roster, and the same as it travels."""
        with storing(self.folder):
            sealed = (self.folder / "roster.json").read_bytes()
        return verify_document(sealed, Roster, self.charter), sealed

    def bundle(self, sealed_roster: bytes) -> bytes:
        """Return what a newcomer needs besides its own key: the job, the charter and a roster."""
        with storing(self.folder):
            job = (self.folder / "job.toml").read_text(encoding="utf-8")
            charter = (self.folder / "charter.json").read_text(encoding="ascii")
        return json.dumps({"job": job, "charter": charter, "roster": sealed_roster.decode("ascii")}).encode()

    def admit(self, joining: JoinRequest, wall_s: int) -> bytes:
        """Put a newcomer into the roster, or move a member; return the signed roster.

        The sender must have proven its key already. Raises `NotAllowed` (`trust.invitation`, `trust.revoked`, and the
        errors of a forged invitation), `StorageFailed`.
        """
        peer_id = peer_id_of(joining.public_key)
        with changing(self.folder):
            roster, sealed = self.roster()
            if peer_id in roster.revoked_peer_ids:
                raise refusal("trust.revoked", f"{peer_id} has been revoked in job {roster.job}")
            held = next((peer for peer in roster.peers if peer.peer_id == peer_id), None)
            if held is None:
                invitation = self._use(joining, peer_id, wall_s)
                name = _free_name(joining.node, {peer.node for peer in roster.peers})
                urls = joining.urls
                held = RosterEntry(name, peer_id, joining.public_key, urls, bool(urls), invitation.examples_max)
            elif held.urls == joining.urls:
                return sealed
            moved = replace(held, urls=joining.urls, is_reachable=bool(joining.urls))
            others = [peer for peer in roster.peers if peer.peer_id != peer_id]
            if len(others) >= PEERS_MAX:
                raise refusal("trust.invitation", f"the roster names {PEERS_MAX} peers, and can name no more")
            listed = tuple(sorted([*others, moved], key=lambda peer: peer.node))
            sealed = sign_document(replace(roster, version=roster.version + 1, peers=listed), self.key, self.charter)
            write_file(self.folder / "roster.json", sealed, "document")
            return sealed

    def _use(self, joining: JoinRequest, peer_id: str, wall_s: int) -> Invitation:
        """Verify an invitation, and count this use of it, durably."""
        invitation = verify_document(joining.invitation, Invitation, self.charter)
        if wall_s > invitation.not_after:
            raise refusal("trust.invitation", f"the invitation ran out at {invitation.not_after}; it is {wall_s}")
        path = self.folder / "admitted.json"
        admitted = _admitted(path)
        bearers = admitted.setdefault(invitation.serial, [])
        if peer_id not in bearers:
            if len(bearers) >= invitation.uses:
                raise refusal("trust.invitation", f"all {invitation.uses} uses of the invitation are taken")
            bearers.append(peer_id)
            write_file(path, json.dumps(admitted).encode(), "admitted")
        return invitation


def _admitted(path: Path) -> dict[str, list[str]]:
    with storing(path):
        text = path.read_bytes() if path.exists() else b"{}"
    try:
        found: Any = json.loads(text)
        return {str(serial): [str(one) for one in bearers] for serial, bearers in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        hint = "remove it and hand out new invitations: it counts the uses of the old ones"
        raise StorageFailed(f"{path}: {error}", code="storage.damaged", hint=hint) from None


def _free_name(wish: str, taken: set[str]) -> str:
    """Return the name that a newcomer asks for, with a number appended if it is taken."""
    for number in range(1, PEERS_MAX + 3):
        name = wish if number == 1 else f"{wish[:57]}-{number}"
        if name not in taken and name != HUB and NAME.fullmatch(name):
            return name
    raise AssertionError("there are more numbers than peers")


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Hold the lock of an operator's folder while its roster is changed. Blocks. Raises `StorageFailed`."""
    with storing(folder):
        descriptor = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)
