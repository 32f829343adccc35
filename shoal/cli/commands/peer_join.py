"""`shoal peer start`, `join` and `invite`: jobs without a coordinator that others join by an invitation."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.commands.data import share_cache
from shoal.cli.commands.peer import (
    JOINED,
    BytesPerHour,
    Discover,
    LearnerOptions,
    MinPeers,
    PeerEndOptions,
    PeerNetOptions,
    app,
    initial_model,
    take_part,
)
from shoal.cli.terminal.options import JobFile, spread
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import safe
from shoal.core.errors import InvalidJob, ShoalError
from shoal.core.errors.phrases import counted

if TYPE_CHECKING:
    from shoal.peering.roster.roster_admission import RosterAdmission

HOUR_S = 3600
NONE = "none"


@dataclass(frozen=True)
class NewPeerOptions:
    """Name and address of this peer."""

    name: Annotated[str | None, typer.Option(help="name of this peer (default: the machine's)", show_default=False)] = (
        None
    )
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="address at which others call this peer, or none (default: this machine's address, a free port)",
            show_default=False,
        ),
    ] = None
    lan: Discover = False
    bytes_per_hour: BytesPerHour = 0.0
    min_peers: MinPeers = None

    def net(self) -> PeerNetOptions:
        """Return the options of `shoal peer run`: the roster names the address."""
        return PeerNetOptions(lan=self.lan, bytes_per_hour=self.bytes_per_hour, min_peers=self.min_peers)


@dataclass(frozen=True)
class InvitationOptions:
    """Limits of an invitation."""

    uses: Annotated[int, typer.Option(min=1, max=4096, help="number of peers that one invitation admits")] = 10
    hours: Annotated[float, typer.Option(min=0.01, max=8760, help="hours until the invitation expires")] = 24.0
    examples: Annotated[int, typer.Option(min=0, help="largest weight that a new peer may claim; 0: any")] = 0


Out = Annotated[Path | None, typer.Option("--folder", help="folder to write (default ./JOB-peers)", show_default=False)]


@spread
def start(
    file: JobFile,
    *,
    folder: Out = None,
    here: NewPeerOptions,
    learner_options: LearnerOptions,
    bounds: InvitationOptions,
    end: PeerEndOptions,
) -> int:
    """Start a job without a server, take part in it, and print an invitation for other peers.

    Example: shoal peer start digits.toml --learner mine.py:learner

    This machine keeps the operator's key and signs the roster, so newcomers can join while this peer runs; the
    others continue without it. A restart continues the job and prints a new invitation.
    """
    from shoal.jobs.spec import load_job
    from shoal.peering.roster.roster_admission import RosterAdmission

    share_cache()
    spec = load_job(file)
    where = folder or Path(f"{spec.name}-peers")
    node = here.name or own_name()
    found(file, where, node, here, learner_options)
    admission = RosterAdmission.open(where)
    text, shown = invitation(admission, bounds, first=node)
    return take_part(where / node, learner_options, here.net(), end, admission, [shown, f"  shoal peer join {text}\n"])


@spread
def join(
    invitation: Annotated[str, typer.Argument(help="string that shoal peer start printed", show_default=False)],
    folder: Annotated[
        Path | None, typer.Argument(help="folder of this peer (default ./JOB-peer)", show_default=False)
    ] = None,
    *,
    here: NewPeerOptions,
    learner_options: LearnerOptions,
    end: PeerEndOptions,
) -> int:
    """Join a job without a server by an invitation, and take part in it.

    Example: shoal peer join shoal-join-eJw… --learner mine.py:learner

    The peer's key never leaves this machine. Repeat the command to continue after a restart.
    """
    from shoal.peering.roster.invitation import read_token
    from shoal_peer.join import join as enter

    token = read_token(invitation)
    where = folder or Path(f"{token.job}-peer")
    known = listed_urls(where)
    urls = addresses(here.listen, known, toward=token.urls[0])
    if known is None or urls != known:
        enter(token, where, here.name or own_name(), urls, JOINED)
        out.notice(f"joined {safe(token.job)}, in {safe(where)}")
    return take_part(where, learner_options, here.net(), end)


@spread
def invite(
    folder: Annotated[
        Path, typer.Argument(help="folder of shoal peer start or init, with operator.pem", show_default=False)
    ],
    *,
    at: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="address of the admitting peer, if not the roster's; repeatable", show_default=False
        ),
    ] = None,
    bounds: InvitationOptions,
) -> None:
    """Print a new invitation. The peer of `shoal peer start` admits its bearers.

    Example: shoal peer invite digits-peers --uses 1 --hours 2
    """
    from shoal.peering.roster.roster_admission import RosterAdmission

    text, shown = invitation(RosterAdmission.open(folder), bounds, at=tuple(at or ()))
    out.answer({"invitation": text, "uses": bounds.uses, "hours": bounds.hours}, shown, f"  shoal peer join {text}")


def found(file: Path, folder: Path, node: str, here: NewPeerOptions, learner_options: LearnerOptions) -> None:
    """Create the operator's folder with this peer in it, or update its address. Raises `ShoalError`."""
    from shoal.jobs.spec import load_job
    from shoal.peering.state.peer_state import config_sha, read_documents
    from shoal_peer.provision import InvitedNode, invite

    known = listed_urls(folder / node)
    urls = addresses(here.listen, known)
    if known is not None and read_documents(folder / node).charter.config_sha != config_sha(file):
        hint = "a job that has begun is never changed: choose another folder with --out"
        raise InvalidJob(f"{file} is not the job in {folder}", code="peer.config", hint=hint)
    if urls == known:
        return
    model = initial_model(load_job(file), learner_options.learner, learner_options.option)
    invite(file, model, [InvitedNode(node, urls[0] if urls else "")], folder)


def invitation(
    admission: RosterAdmission, bounds: InvitationOptions, *, first: str = "", at: tuple[str, ...] = ()
) -> tuple[str, str]:
    """Return a new invitation and a sentence about it. Raises `ShoalError`."""
    from shoal.peering.roster.invitation import InvitationToken
    from shoal.peering.roster.join_certificate import URLS_MAX
    from shoal.runtime.http.coordinator_url import parse

    roster, _ = admission.roster()
    own = [peer for peer in roster.peers if peer.node == first or (admission.folder / peer.node / "key.pem").is_file()]
    urls = tuple(parse(url).url for url in at) or tuple(url for peer in own for url in peer.urls)
    if not urls:
        hint = "give it: shoal peer invite FOLDER --at http://10.0.0.1:9001"
        raise ShoalError("the roster has no address of the peer that admits", code="peer.address", hint=hint)
    until = int(time.time() + bounds.hours * HOUR_S)
    sealed = admission.invitation(bounds.uses, until, bounds.examples)
    text = InvitationToken(roster.job, urls[:URLS_MAX], admission.charter.digest, sealed).text()
    when = datetime.fromtimestamp(until).astimezone().strftime("%Y-%m-%d %H:%M")
    many = counted(bounds.uses, "machine")
    return text, f"run this on the others to let them in; it is valid for {many}, until {when}; its holders can join:"


def addresses(listen: str | None, known: tuple[str, ...] | None, *, toward: str = "") -> tuple[str, ...]:
    """Return the URLs of this peer; none if it cannot be called. Raises `ShoalError`."""
    from shoal.cli.commands.peer import where
    from shoal.runtime.http.coordinator_url import parse
    from shoal_peer.join import free_port, own_host

    if listen == NONE or (listen is None and known == ()):
        return ()
    if listen is not None:
        host, port = where(listen, "")
        host = own_host(toward) if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host  # noqa: S104
        return (parse(f"http://{host}:{port or free_port()}").url,)
    if known:
        before = parse(known[0])
        return (parse(f"http://{own_host(toward) if toward else before.host}:{before.port}").url,)
    return (parse(f"http://{own_host(toward)}:{free_port()}").url,)


def listed_urls(folder: Path) -> tuple[str, ...] | None:
    """Return the URLs of a peer in the roster of its folder; None without a roster. Raises `ShoalError`."""
    from shoal.peering.state.peer_state import DOCUMENT_FILES, read_documents

    if not all((folder / name).is_file() for name in DOCUMENT_FILES):
        return None
    return read_documents(folder).me.urls


def own_name() -> str:
    """Return the machine's name as the name of a peer."""
    import socket

    name = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-")
    return name[:40] or "peer"


for command in (start, join, invite):
    app.command()(command)
