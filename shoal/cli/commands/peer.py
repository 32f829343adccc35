"""`shoal peer`: a job that never had a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.data import share_cache
from shoal.cli.options import Device, JobFile, Precision, spread
from shoal.cli.output import log_level, out
from shoal.cli.peer_export import Force, ModelFile, check_vacant, export, save
from shoal.cli.peer_status import status
from shoal.cli.text import pairs, percent, safe, size
from shoal.cli.values import assignments
from shoal.core.errors import InvalidJob, ShoalError
from shoal.core.words import counted
from shoal.extras import not_installed

if TYPE_CHECKING:
    from shoal.core.gossip import Learned
    from shoal.core.message import Metrics
    from shoal.core.tree import Tree
    from shoal.spec import JobSpec
    from shoal_peer.admission import Admission
    from shoal_peer.invite import Invited
    from shoal_peer.status import Summary

Learner = Annotated[
    str | None, typer.Option(help="your model and data: FILE.py:NAME; else the job's", show_default=False)
]
Options = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="passed to the learner", show_default=False)
]


@dataclass(frozen=True)
class Mine:
    """The learner of this machine."""

    learner: Learner = None
    option: Options = None
    device: Device = None
    precision: Precision = None


@dataclass(frozen=True)
class Net:
    """Where this peer and the others are."""

    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="default: the roster's port, on 127.0.0.1 if it says so, else on all addresses",
            show_default=False,
        ),
    ] = None
    join: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=URL", help="where a peer is, if not where the roster says", show_default=False),
    ] = None
    roster: Annotated[Path | None, typer.Option(help="a newer roster than the folder's", show_default=False)] = None
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


@dataclass(frozen=True)
class End:
    """How this peer's part ends."""

    linger: Annotated[
        float, typer.Option(min=0, help="seconds to stay, at the end, for peers that are silent and may come back")
    ] = 60.0
    books: Annotated[bool, typer.Option("--books", help="keep account of what is learned, to check it")] = False
    output: ModelFile = None
    force: Force = False


BUILT_IN = frozenset(
    {
        "shoal.learn.digits:learner",
        "shoal.learn.digits:compared",
        "shoal.learn.mnist:learner",
        "shoal.learn.mnist:stream",
    }
)
"""Learners that a job which came over the network may name."""
JOINED = "joined.json"
"""File in the folder of a peer that joined by an invitation."""

app = typer.Typer(no_args_is_help=True, help="A job that its peers run by themselves, with no server.")
app.command()(export)
app.command()(status)


@app.command()
def new(
    file: JobFile,
    *,
    peer: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=URL[,EXAMPLES][,ed25519:…]",
            help="a peer, where the others reach it, its greatest weight, and its own public key",
            show_default=False,
        ),
    ],
    folder: Annotated[
        Path | None, typer.Option("--out", help="folder to write (default ./JOB-peers)", show_default=False)
    ] = None,
    learner: Learner = None,
    option: Options = None,
) -> None:
    """Make what each peer of a job needs: the job, a signed charter and roster, a key.

    Example: shoal peer new digits.toml --peer a=http://10.0.0.1:9001 --peer b=http://10.0.0.2:9001

    Carry FOLDER/NAME to the machine of NAME by a way that you trust, and start `shoal peer run` there. Keep
    FOLDER/operator.pem. Called again, it admits more peers.
    """
    from shoal.spec import load_job
    from shoal_peer.invite import invite

    share_cache()
    spec = load_job(file)
    invited = [invited_of(text) for text in peer]
    model = initial_model(spec, learner, option)
    where = folder or Path(f"{spec.name}-peers")
    roster = invite(file, model, invited, where)
    nodes = [one.node for one in roster.peers]
    rows = [(node, f"shoal peer run {safe(where / node)}") for node in nodes]
    out.answer({"folder": where, "roster": roster.version, "peers": nodes}, pairs(rows))


def initial_model(spec: JobSpec, learner: str | None, option: Sequence[str] | None) -> Tree:
    """Return the model that a job begins with, made by the learner of its file or this one. Raises `ShoalError`."""
    from shoal.core.capability import check_learner
    from shoal.learn.loading import load_learner

    target = learner or spec.learner
    if not target:
        raise InvalidJob("the job names no learner", code="learner.missing", hint="say --learner FILE.py:NAME")
    given = {**spec.options, **(assignments(option, "--option") if option else {})}
    made = load_learner(target, given)
    check_learner(spec.build_algorithm(), made)
    return made.init(spec.seed)


def invited_of(text: str) -> Invited:
    """A peer as a person writes it. Raises `ShoalError`."""
    from shoal.heads import NAME
    from shoal.runtime.address import parse
    from shoal_peer.invite import Invited

    name, equals, rest = text.partition("=")
    url, *more = rest.split(",")
    pub = next((one for one in more if one.startswith("ed25519:")), "")
    numbers = [one for one in more if one != pub]
    if not equals or not NAME.fullmatch(name) or len(numbers) > 1 or not all(one.isdecimal() for one in numbers):
        hint = "write NAME=URL, for example a=http://10.0.0.1:9001, and its greatest weight behind a comma"
        raise ShoalError(f"--peer {text}: this names no peer", code="usage.invalid", hint=hint)
    return Invited(name, parse(url).url if url else "", pub, int(numbers[0]) if numbers else 0)


@app.command()
def key(
    folder: Annotated[Path, typer.Argument(help="folder of this peer; made if it is not there", show_default=False)],
) -> None:
    """Make this node's own key, and print its public half for the operator."""
    from shoal.runtime.store import make_folder
    from shoal.trust.keys import load_or_make

    make_folder(folder)
    made = load_or_make(folder / "key.pem")
    out.answer({"public_key": made.pub, "peer_id": made.peer_id}, made.pub)


@app.command()
@spread
def run(
    folder: Annotated[Path, typer.Argument(help="folder of this peer, from shoal peer new", show_default=False)],
    *,
    mine: Mine,
    net: Net,
    end: End,
) -> int:
    """Take part in a job without a server, until its rounds are made or Ctrl-C.

    Example: shoal peer run digits-peers/a --learner mine.py:learner --option part=0

    Data and code stay here; models travel. Ctrl-C once settles what is open and leaves, twice ends at once. Started
    again, it goes on where it was, also after a crash.
    """
    return take_part(folder, mine, net, end)


def take_part(
    folder: Path, mine: Mine, net: Net, end: End, admission: Admission | None = None, greeting: Sequence[str] = ()
) -> int:
    """Run the peer of a folder to its end; return the exit code. With `admission` it admits newcomers; it prints
    `greeting` as soon as it answers them."""
    try:
        from shoal_peer.running import run as run_peer
    except ModuleNotFoundError as error:
        raise not_installed(error, "peer", "a peer") from None
    from shoal.runtime import logs
    from shoal_peer.folder import read_papers
    from shoal_peer.node import Settings

    check_vacant(end.output, force=end.force)
    papers = read_papers(folder, net.roster)
    logs.configure("peer", level=log_level(), node=papers.me.node)
    share_cache()
    settings = Settings(
        folder,
        learner=own_learner(folder, papers.spec.learner, mine.learner),
        options=assignments(mine.option, "--option") if mine.option else {},
        device=mine.device or "",
        precision=mine.precision or "",
        join=joined(net.join or [], {one.node for one in papers.roster.peers}),
        roster=net.roster,
        books=end.books,
        linger_s=end.linger,
        lan=net.lan,
        bytes_per_hour=net.bytes_per_hour,
        min_peers=net.min_peers or 0,
        admission=admission,
    )
    host, port = where(net.listen, papers.me.urls[0] if papers.me.urls else "", everywhere=net.lan)
    rounds = papers.spec.gossip.rounds or papers.spec.rounds
    with out.progress(papers.spec.name, rounds or None) as advance:
        advance(0.0, "loading the learner")

        def listens(name: str, port: int) -> None:
            advance(0.0, "looking for the others")
            announced(name, port)
            for line in greeting:
                out.notice(line)

        code, summary = run_peer(settings, host, port, Shown(advance, rounds), listens)
    report(summary, save(folder, end.output) if end.output is not None else None)
    return code


def own_learner(folder: Path, of_job: str, given: str | None) -> str:
    """Return the learner to run. A job that came over the network may name one of shoal's own, and no other code.

    Raises `InvalidJob`.
    """
    if given or not (folder / JOINED).is_file() or of_job in BUILT_IN:
        return given or ""
    named = f"the job names the learner {of_job}" if of_job else "the job names no learner"
    hint = "say which code of yours it is to run: --learner FILE.py:NAME"
    raise InvalidJob(f"{named}, which came over the network", code="learner.foreign", hint=hint)


def joined(texts: list[str], known: set[str]) -> dict[str, str]:
    """Where peers of the roster are, of NAME=URL. Raises `ShoalError`."""
    found = {}
    for text in texts:
        name, equals, url = text.partition("=")
        if not equals or "://" in name:
            hint = "say whose address it is: --join a=http://10.0.0.1:9001"
            raise ShoalError(f"--join {text}: not of the form NAME=URL", code="usage.invalid", hint=hint)
        if name not in known:
            hint = f"it names {', '.join(sorted(known))}"
            raise ShoalError(f"--join {text}: the roster has no {name}", code="usage.invalid", hint=hint)
        found[name] = url
    return found


def announced(name: str, port: int) -> None:
    """Say where this peer answers."""
    out.notice(f"{safe(name)} answers on port {port}  [dim](Ctrl-C leaves)[/]")


def where(listen: str | None, url: str, *, everywhere: bool = False) -> tuple[str, int]:
    """(host, port) to listen on. Raises `ShoalError`."""
    from shoal.runtime.address import is_loopback, parse

    if listen is not None:
        host, colon, port = listen.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise ShoalError(f"--listen {listen}: no HOST:PORT", code="usage.invalid", hint="for example 0.0.0.0:9001")
        return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - what was asked for
    if not url:
        return ("0.0.0.0" if everywhere else "127.0.0.1"), 0  # noqa: S104 - others are to find it
    found = parse(url)
    return (found.host if is_loopback(found) else "0.0.0.0"), found.port  # noqa: S104 - as others are to reach it


class Shown:
    """How it goes, on the terminal."""

    def __init__(self, advance: Any, rounds: int) -> None:
        self._advance, self._rounds, self._note = advance, rounds, ""

    def round(self, effect: Learned, live: int) -> None:
        """A local round has ended."""
        measured = [
            f"{name} {effect.metrics[name]:.4g}" for name in ("eval/accuracy", "train/loss") if name in effect.metrics
        ]
        of = f" of {self._rounds}" if self._rounds else ""
        text = ", ".join([f"round {effect.round}{of}", f"{live} others", *measured])
        self._advance(float(effect.round), text, self._note)
        out.detail(text)

    def note(self, text: str) -> None:
        """Something for people."""
        self._note = text
        out.detail(text)

    def waiting(self, lines: Sequence[str]) -> None:
        """Tell for whom this peer waits, and why; with no lines, that it begins."""
        if not lines:
            out.notice("enough are here: learning begins")
            return
        self._advance(0.0, safe(lines[0].partition(";")[0]))
        for number, text in enumerate(lines):
            out.notice(safe(text) if number == 0 else f"  [dim]{safe(text)}[/]")


def report(summary: Summary, model: dict[str, Any] | None = None) -> None:
    """What came of it. `model`: describes the file that it was written to."""
    sent, received = (sum(summary.traffic[way].values()) for way in ("sent", "received"))
    rows = [
        ("rounds", f"{summary.rounds}{'' if summary.finished else ', not all of them'}"),
        ("holds rounds of", ", ".join(f"{node} {count}" for node, count in summary.seen.items()) or "nobody"),
    ]
    last = "accuracy, drawn together" if summary.one else "accuracy, when it left"
    for name, metrics in (("accuracy, own", summary.own), (last, summary.drawn)):
        if "eval/accuracy" in metrics:
            rows.append((name, f"{percent(metrics['eval/accuracy'])}{measured_on(metrics)}"))
    rows += [("sent", size(sent)), ("received", size(received))]
    if not summary.settled:
        rows.append(("open", "an exchange: start this peer again some time, it settles it"))
    if model is not None:
        rows.append(("model", f"{safe(model['path'])}, {size(model['bytes'])}, sha256 {model['sha256']}"))
    out.answer(
        {
            "node": summary.node,
            "rounds": summary.rounds,
            "finished": summary.finished,
            "settled": summary.settled,
            "one": summary.one,
            "own": summary.own,
            "drawn": summary.drawn,
            "seen": summary.seen,
            "bytes": summary.traffic,
            "model": model,
        },
        pairs(rows),
    )


def measured_on(metrics: Metrics) -> str:
    """How much a measurement is worth: these are this peer's examples, few perhaps, and not like everybody's."""
    count = metrics.get("eval/examples", 0.0)
    return f"  of {counted(round(count), 'example')} that this peer has held back" if count >= 1 else ""
