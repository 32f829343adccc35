"""The peers of one job that certificates have admitted, here or in an earlier process.

FOLDER/windows.json       the windows of each sender's requests
FOLDER/admitted_by_certificate.json    the admitted peers, by peer id, with the addresses that they gave
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.peering.http.peer_link import wall_s
from shoal.peering.roster.join_certificate import CertificateEntry
from shoal.peering.state.peer_state import PeerDocuments
from shoal.runtime.durable_files import CrashPoint, read_json, write_file
from shoal.runtime.http.coordinator_url import parse
from shoal.trust.documents import RosterEntry
from shoal.trust.envelope import SignedRequest, sha256
from shoal.trust.request_verifier import RequestVerifier


class AdmittedPeers:
    """The verifier's file, and the peers that its roster does not name. Raises `StorageFailed` for damaged files."""

    def __init__(
        self, verifier: RequestVerifier, lock: threading.Lock, folder: Path, documents: PeerDocuments, at: CrashPoint
    ) -> None:
        self._verifier, self._lock, self._folder, self._at = verifier, lock, folder, at
        self._peers = self._load(documents)

    def _load(self, documents: PeerDocuments) -> dict[str, RosterEntry]:
        shown = read_json(self._folder / "admitted_by_certificate.json", _addresses) or {}
        return {
            peer.node: replace(peer, urls=shown[peer.peer_id], is_reachable=bool(shown[peer.peer_id]))
            for peer in self._verifier.members()
            if peer.node not in documents.roster_names and peer.peer_id in shown
        }

    def admit(self, entry: CertificateEntry, request: SignedRequest, text: bytes, documents: PeerDocuments) -> str:
        """Admit a newcomer by its certificate; return its name, or "" if the roster names it.

        Raises `NotAllowed`, `Refused`.
        """
        with self._lock:
            peer = self._verifier.admit_certificate(entry.certificate, request, sha256(text), wall_s())
        if peer.node in documents.roster_names:
            return ""
        self._peers[peer.node] = replace(peer, urls=entry.urls, is_reachable=bool(entry.urls))
        return peer.node

    def update(self, documents: PeerDocuments) -> tuple[frozenset[str], Mapping[str, RosterEntry]]:
        """Drop peers that the roster names or that are not members; return all members, and the others by name."""
        with self._lock:
            members = {peer.node: peer for peer in self._verifier.members()}
        self._peers = {
            node: peer
            for node, peer in self._peers.items()
            if node not in documents.roster_names and node in members and peer.peer_id == members[node].peer_id
        }
        return frozenset(members), {**self._peers, **{peer.node: peer for peer in documents.others}}

    def save(self) -> None:
        """Save windows and admitted peers; blocks. Raises `StorageFailed`."""
        with self._lock:
            snapshot = self._verifier.snapshot()
        path = self._folder / "admitted_by_certificate.json"
        shown = {peer.peer_id: list(peer.urls) for peer in list(self._peers.values())}
        if shown or path.exists():
            write_file(path, json.dumps(shown).encode(), "entered", self._at)
        write_file(self._folder / "windows.json", json.dumps(snapshot).encode(), "windows", self._at)


def _addresses(values: Any) -> dict[str, tuple[str, ...]]:
    return {peer_id: tuple(parse(url).url for url in urls) for peer_id, urls in values.items()}
