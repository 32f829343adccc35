"""`shoal peer start`, `join` and `invite`: a job without a server that others join by one pasted string."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.data import share_cache
from shoal.cli.options import JobFile, spread
from shoal.cli.output import out
from shoal.cli.peer import JOINED, End, Mine, Net, app, initial_model, take_part
from shoal.cli.text import safe
from shoal.core.errors import InvalidJob, ShoalError
from shoal.core.words import counted

if TYPE_CHECKING:
    from shoal_peer.admission import Admission

HOUR_S = 3600
NONE = "none"


@dataclass(frozen=True)
class Here:
    """Where this peer is, as `Net` has it for a peer whose roster is made by hand."""

    name: Annotated[str | None, typer.Option(help="name of this peer (default: the machine's)", show_default=False)] = (
        None
    )
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="where others call this peer, or none: it only calls (default: this machine's address, a free port)",
            show_default=False,
        ),
    ] = None
    lan: Annotated[
        bool, typer.Option("--lan", help="announce this peer on its network, and look for the others there")
    ] = False
    bytes_per_hour: Annotated[
        float,
        typer.Option(metavar="BYTES", min=0, help="bytes that may cross in an hour, if fewer than the job allows"),
    ] = 0.0
    min_peers: Annotated[
        int | None,
        typer.Option(
            min=1, max=4096, help="begin when so many peers are here (default: the job's number)", show_default=False
        ),
    ] = None

    def net(self) -> Net:
        """Return the options of `shoal peer run`: the roster names the address."""
        return Net(lan=self.lan, bytes_per_hour=self.bytes_per_hour, min_peers=self.min_peers)


@dataclass(frozen=True)
class Bounds:
    """How far an invitation reaches."""

    uses: Annotated[int, typer.Option(min=1, max=4096, help="newcomers that one invitation lets in")] = 10
    hours: Annotated[float, typer.Option(min=0.01, max=8760, help="hours until the invitation runs out")] = 24.0
    examples: Annotated[int, typer.Option(min=0, help="greatest weight that a newcomer may claim; 0: any")] = 0


Out = Annotated[Path | None, typer.Option("--out", help="folder to write (default ./JOB-peers)", show_default=False)]


@spread
def start(file: JobFile, *, folder: Out = None, here: Here, mine: Mine, bounds: Bounds, end: End) -> int:
    """Begin a job without a server, take part in it, and let others in who paste the invitation that is printed.

    Example: shoal peer start digits.toml --learner mine.py:learner

    This machine keeps the operator's key and signs the roster, so newcomers can join while this peer runs; the
    others carry on without it. Started again, it goes on where it was, and prints a new invitation.
    """
    from shoal.spec import load_job
    from shoal_peer.admission import Admission

    share_cache()
    spec = load_job(file)
    where = folder or Path(f"{spec.name}-peers")
    node = here.name or own_name()
    found(file, where, node, here, mine)
    admission = Admission.open(where)
    text, shown = invitation(admission, bounds, first=node)
    return take_part(where / node, mine, here.net(), end, admission, [shown, f"  shoal peer join {text}\n"])


@spread
def join(
    invitation: Annotated[str, typer.Argument(help="the string that shoal peer start has printed", show_default=False)],
    folder: Annotated[
        Path | None, typer.Argument(help="folder of this peer (default ./JOB-peer)", show_default=False)
    ] = None,
    *,
    here: Here,
    mine: Mine,
    end: End,
) -> int:
    """Join a job without a server by an invitation, and take part in it.

    Example: shoal peer join shoal-join-eJw… --learner mine.py:learner

    A key is made here and never leaves this machine. The same command again goes on where this peer was.
    """
    from shoal_peer.invitation import read_token
    from shoal_peer.joining import join as enter

    token = read_token(invitation)
    where = folder or Path(f"{token.job}-peer")
    known = listed_urls(where)
    urls = addresses(here.listen, known, toward=token.urls[0])
    if known is None or urls != known:
        enter(token, where, here.name or own_name(), urls, JOINED)
        out.notice(f"joined {safe(token.job)}, in {safe(where)}")
    return take_part(where, mine, here.net(), end)


@spread
def invite(
    folder: Annotated[
        Path, typer.Argument(help="folder that shoal peer start or new has made, with operator.pem", show_default=False)
    ],
    *,
    at: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="address of the peer that admits, if not the roster's", show_default=False),
    ] = None,
    bounds: Bounds,
) -> None:
    """Print a new invitation. The peer that `shoal peer start` runs admits its bearers.

    Example: shoal peer invite digits-peers --uses 1 --hours 2
    """
    from shoal_peer.admission import Admission

    text, shown = invitation(Admission.open(folder), bounds, at=tuple(at or ()))
    out.answer({"invitation": text, "uses": bounds.uses, "hours": bounds.hours}, shown, f"  shoal peer join {text}")


def found(file: Path, folder: Path, node: str, here: Here, mine: Mine) -> None:
    """Make the operator's folder with this peer in it, or move this peer. Raises `ShoalError`."""
    from shoal.spec import load_job
    from shoal_peer.folder import config_sha, read_papers
    from shoal_peer.invite import Invited, invite

    known = listed_urls(folder / node)
    urls = addresses(here.listen, known)
    if known is not None and read_papers(folder / node).charter.config_sha != config_sha(file):
        hint = "a job that has begun is never changed: choose another folder with --out"
        raise InvalidJob(f"{file} is not the job in {folder}", code="peer.config", hint=hint)
    if urls == known:
        return
    model = initial_model(load_job(file), mine.learner, mine.option)
    invite(file, model, [Invited(node, urls[0] if urls else "")], folder)


def invitation(admission: Admission, bounds: Bounds, *, first: str = "", at: tuple[str, ...] = ()) -> tuple[str, str]:
    """Return a new invitation as one string, and a sentence about it. Raises `ShoalError`."""
    from shoal.runtime.address import parse
    from shoal_peer.entry import URLS_MAX
    from shoal_peer.invitation import Token

    roster, _ = admission.roster()
    mine = [peer for peer in roster.peers if peer.node == first or (admission.folder / peer.node / "key.pem").is_file()]
    urls = tuple(parse(url).url for url in at) or tuple(url for peer in mine for url in peer.urls)
    if not urls:
        hint = "give it: shoal peer invite FOLDER --at http://10.0.0.1:9001"
        raise ShoalError("the roster has no address of the peer that admits", code="peer.address", hint=hint)
    until = int(time.time() + bounds.hours * HOUR_S)
    sealed = admission.invitation(bounds.uses, until, bounds.examples)
    text = Token(roster.job, urls[:URLS_MAX], admission.charter.digest, sealed).text()
    when = datetime.fromtimestamp(until).astimezone().strftime("%Y-%m-%d %H:%M")
    many = counted(bounds.uses, "machine")
    return text, f"run this on the others to let them in; it holds for {many}, until {when}; who has it can join:"


def addresses(listen: str | None, known: tuple[str, ...] | None, *, toward: str = "") -> tuple[str, ...]:
    """Return where others are to call this peer: nowhere, where a person says so. Raises `ShoalError`."""
    from shoal.cli.peer import where
    from shoal.runtime.address import parse
    from shoal_peer.joining import free_port, own_host

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
    """Return the addresses of a peer in its folder's roster; None where there is none yet. Raises `ShoalError`."""
    from shoal_peer.folder import PAPERS, read_papers

    if not all((folder / name).is_file() for name in PAPERS):
        return None
    return read_papers(folder).me.urls


def own_name() -> str:
    """Return the machine's name as the name of a peer."""
    import socket

    name = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-")
    return name[:40] or "peer"


for command in (start, join, invite):
    app.command()(command)
