"""How a newcomer joins a job without a server by an invitation: it makes a key here, and gets the job's papers.

The invitation names the charter by its SHA-256; charter, job and roster must all belong to it, so it does not matter
who else is on the network. Nothing is written before all of it is verified.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Mapping
from pathlib import Path

from shoal.core.errors import InvalidJob, NotAllowed, ShoalError, Unreachable
from shoal.runtime.address import parse
from shoal.runtime.http import Link
from shoal.runtime.store import make_folder, write_file
from shoal.trust.envelope import Signer, sha256
from shoal.trust.keys import Key, load_or_make
from shoal.trust.papers import Charter, Invitation, Roster, charter_of, open_charter, unseal
from shoal_peer.folder import Desk
from shoal_peer.invitation import Joining, Token
from shoal_peer.rosters import read_bundle

READ_S = 20.0
JOB_BYTES_MAX = 1024 * 1024
BUNDLE_BYTES_MAX = 2 * (JOB_BYTES_MAX + Charter.BYTES_MAX + Roster.BYTES_MAX)


def join(token: Token, folder: Path, node: str, urls: tuple[str, ...], marker: str) -> None:
    """Make the folder of a newcomer, or have its address changed, by asking the peers of the invitation in turn.

    `marker`: the name of a file that says that it joined. Raises `ShoalError`: what the last of them answered.
    """
    _check_folder(token, folder)
    make_folder(folder)
    key = load_or_make(folder / "key.pem")
    with Desk(folder) as desk:
        boot = desk.boot
    failures: list[ShoalError] = []
    for url in token.urls:
        try:
            papers = _asked(url, token, key, boot, Joining(token.invitation, node, key.pub, urls))
        except ShoalError as error:
            failures.append(error)
            continue
        for name, text in papers.items():
            write_file(folder / name, text, "paper")
        write_file(folder / marker, json.dumps({"from": url}).encode(), "paper")
        return
    if all(isinstance(error, Unreachable) for error in failures):
        why = f"no peer of the invitation answers: {failures[-1].message}"
        hint = "see that the peer that invited you runs; if its address has changed, ask for a new invitation"
        raise Unreachable(why, code="peer.unreachable", hint=hint)
    raise next(error for error in reversed(failures) if not isinstance(error, Unreachable))


def _check_folder(token: Token, folder: Path) -> None:
    path = folder / "charter.json"
    if path.is_file() and open_charter(path.read_bytes()).digest != token.charter:
        hint = "give another folder: shoal peer join INVITATION FOLDER"
        raise InvalidJob(f"{folder} belongs to another job", code="peer.config", hint=hint)


def _asked(url: str, token: Token, key: Key, boot: int, joining: Joining) -> Mapping[str, bytes]:
    """Return the papers that the peer at an address answers with, verified."""
    path, text = f"/p2p/{token.job}/join", joining.text()
    with Link(url, read_s=READ_S) as link:
        charter = charter_of(link.json("GET", f"/p2p/{token.job}/charter", own=True))
        if charter.digest != token.charter or charter.job != token.job:
            hint = "the peer there takes part in another job of that name: ask for a new invitation"
            raise NotAllowed(f"{url} shows another charter than the invitation's", code="peer.charter", hint=hint)
        unseal(token.invitation, Invitation, charter)
        peer_id = str(link.json("GET", "/p2p", own=True)["peer_id"])
        request = Signer(key, charter, boot).request(peer_id, "POST", path, "", sha256(text))
        headers = {**request.headers(), "Content-Length": str(len(text))}
        with link.exchange("POST", path, headers=headers, content=text, own=True) as answer:
            return _verified(read_bundle(answer.read(BUNDLE_BYTES_MAX)), charter, key)


def _verified(papers: Mapping[str, bytes], charter: Charter, key: Key) -> Mapping[str, bytes]:
    """Return the same papers. Raises `ShoalError` unless they are those of the charter, and name this key."""
    roster = unseal(papers["roster.json"], Roster, charter)
    job_sha = hashlib.sha256(papers["job.toml"]).hexdigest()
    if open_charter(papers["charter.json"]) != charter or job_sha != charter.config_sha:
        hint = "somebody on the way changes what the peer answers, or it is broken: ask the one who invited you"
        raise NotAllowed("the papers are not those of the charter", code="peer.papers", hint=hint)
    if key.pub not in {peer.pub for peer in roster.peers}:
        raise NotAllowed("the roster does not name this key", code="peer.papers", hint="try again")
    return papers


def own_host(toward: str = "") -> str:
    """Return the address of this machine that others on its network can call; no packet is sent to find it."""
    host, port = ("192.0.2.1", 9) if not toward else (parse(toward).host, parse(toward).port)
    try:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            found = str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
    return f"[{found}]" if ":" in found else found


def free_port() -> int:
    """Return a port that nothing listens at."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
