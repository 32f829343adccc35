"""`shoal peer`: jobs without a coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.commands.data import share_cache
from shoal.cli.commands.peer_export import Force, check_vacant, export, save
from shoal.cli.commands.peer_status import status
from shoal.cli.terminal.options import Device, JobFile, ModelOutput, Precision, spread
from shoal.cli.terminal.output import log_level, out
from shoal.cli.terminal.text import pairs, percent, safe, size
from shoal.cli.terminal.values import plain_assignments
from shoal.core.errors import InvalidJob, ShoalError
from shoal.core.errors.phrases import counted
from shoal.extras import not_installed

if TYPE_CHECKING:
    from shoal.core.gossip.gossip import LocalRoundDone
    from shoal.core.model.tree import Tree
    from shoal.core.protocol.message import Metrics
    from shoal.jobs.spec import JobSpec
    from shoal.peering.roster.roster_admission import RosterAdmission
    from shoal_peer.peer_status import PeerSummary
    from shoal_peer.provision import InvitedNode

Learner = Annotated[
    str | None, typer.Option(help="your model and data: FILE.py:NAME (default: the job's)", show_default=False)
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="option of the learner; repeatable", show_default=False),
]

Discover = Annotated[
    bool, typer.Option("--discover", help="announce this peer on its network, and look for the others there")
]
BytesPerHour = Annotated[
    float, typer.Option(metavar="BYTES", min=0, help="limit of bytes per hour, if lower than the job's")
]
MinPeers = Annotated[
    int | None,
    typer.Option(
        min=1, max=4096, help="start when this many peers are present (default: the job's number)", show_default=False
    ),
]


@dataclass(frozen=True)
class LearnerOptions:
    """The learner of this machine."""

    learner: Learner = None
    option: Options = None
    device: Device = None
    precision: Precision = None


@dataclass(frozen=True)
class PeerNetOptions:
    """Addresses of this peer and the others."""

    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="address to listen on (default: the roster's port)",
            show_default=False,
        ),
    ] = None
    join: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=URL", help="address of a peer, if not the roster's; repeatable", show_default=False),
    ] = None
    roster: Annotated[Path | None, typer.Option(help="a newer roster than the folder's", show_default=False)] = None
    lan: Discover = False
    bytes_per_hour: BytesPerHour = 0.0
    min_peers: MinPeers = None


@dataclass(frozen=True)
class PeerEndOptions:
    """Options for the end of the job."""

    linger: Annotated[float, typer.Option(min=0, help="seconds to wait at the end for silent peers")] = 60.0
    audit: Annotated[bool, typer.Option("--audit", help="record sums that show that no update was lost")] = False
    output: ModelOutput = None
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

app = typer.Typer(
    no_args_is_help=True, help="Jobs among peers without a coordinator: start, join, invite, run, status, export."
)
app.command()(export)
app.command()(status)


@app.command()
def init(
    file: JobFile,
    *,
    peer: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=URL[,EXAMPLES][,ed25519:…]",
            help="a peer, its address, its largest weight, and its own public key",
            show_default=False,
        ),
    ],
    folder: Annotated[
        Path | None, typer.Option("--folder", help="folder to write (default ./JOB-peers)", show_default=False)
    ] = None,
    learner: Learner = None,
    option: Options = None,
) -> None:
    """Create the folder of each peer of a job: the job file, a signed charter and roster, a key.

    Example: shoal peer init digits.toml --peer a=http://10.0.0.1:9001 --peer b=http://10.0.0.2:9001

    Copy FOLDER/NAME to the machine of NAME by a secure channel, and start `shoal peer run` there. Keep
    FOLDER/operator.pem. Repeat the command to admit more peers.
    """
    from shoal.jobs.spec import load_job
    from shoal_peer.provision import invite

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
    """Return the initial model from the learner of the job file or of this machine. Raises `ShoalError`."""
    from shoal.core.algorithm.capability import check_learner
    from shoal.core.algorithm.learner import fresh_weights
    from shoal.learn.loading import load_learner

    target = learner or spec.learner
    if not target:
        raise InvalidJob("the job names no learner", code="learner.missing", hint="add --learner FILE.py:NAME")
    given = {**spec.options, **(plain_assignments(option, "--option") if option else {})}
    made = load_learner(target, given)
    check_learner(spec.build_algorithm(), made)
    return fresh_weights(made, spec.seed)


def invited_of(text: str) -> InvitedNode:
    """Parse an option --peer. Raises `ShoalError`."""
    from shoal.runtime.http.coordinator_url import parse
    from shoal.validation.message_checks import NAME
    from shoal_peer.provision import InvitedNode

    name, equals, rest = text.partition("=")
    url, *more = rest.split(",")
    public_key = next((one for one in more if one.startswith("ed25519:")), "")
    numbers = [one for one in more if one != public_key]
    if not equals or not NAME.fullmatch(name) or len(numbers) > 1 or not all(one.isdecimal() for one in numbers):
        hint = "write NAME=URL, for example a=http://10.0.0.1:9001, and its greatest weight behind a comma"
        raise ShoalError(f"--peer {text}: this names no peer", code="usage.invalid", hint=hint)
    return InvitedNode(name, parse(url).url if url else "", public_key, int(numbers[0]) if numbers else 0)


@app.command()
def key(
    folder: Annotated[Path, typer.Argument(help="folder of this peer; created if missing", show_default=False)],
) -> None:
    """Create this node's key, and print its public half for the operator."""
    from shoal.runtime.durable_files import make_folder
    from shoal.trust.keys import load_or_create

    make_folder(folder)
    made = load_or_create(folder / "key.pem")
    out.answer({"public_key": made.public_key, "peer_id": made.peer_id}, made.public_key)


@app.command()
@spread
def run(
    folder: Annotated[Path, typer.Argument(help="folder of this peer, from shoal peer init", show_default=False)],
    *,
    learner_options: LearnerOptions,
    net: PeerNetOptions,
    end: PeerEndOptions,
) -> int:
    """Take part in a job without a server, until all peers have finished or Ctrl-C.

    Example: shoal peer run digits-peers/a --learner mine.py:learner --option part=0

    Data and code stay on this machine; models travel. The first Ctrl-C leaves gracefully, a second ends at once. A
    restart continues the job, also after a crash.
    """
    return take_part(folder, learner_options, net, end)


def take_part(
    folder: Path,
    learner_options: LearnerOptions,
    net: PeerNetOptions,
    end: PeerEndOptions,
    admission: RosterAdmission | None = None,
    greeting: Sequence[str] = (),
) -> int:
    """Run the peer of a folder until it ends, and return the exit code. With `admission` it admits newcomers, and
    prints `greeting` when it is ready to."""
    try:
        from shoal_peer.process import run as run_peer
    except ModuleNotFoundError as error:
        raise not_installed(error, "peer", "a peer") from None
    from shoal.peering.state.peer_state import read_documents
    from shoal.runtime.observability import logs
    from shoal_peer.peer_process import PeerSettings

    check_vacant(end.output, force=end.force)
    documents = read_documents(folder, net.roster)
    logs.configure("peer", level=log_level(), node=documents.me.node)
    share_cache()
    settings = PeerSettings(
        folder,
        learner=own_learner(folder, documents.spec.learner, learner_options.learner),
        options=plain_assignments(learner_options.option, "--option") if learner_options.option else {},
        device=learner_options.device or "",
        precision=learner_options.precision or "",
        join=joined(net.join or [], {one.node for one in documents.roster.peers}),
        roster=net.roster,
        audit=end.audit,
        linger_s=end.linger,
        lan=net.lan,
        bytes_per_hour=net.bytes_per_hour,
        min_peers=net.min_peers or 0,
        admission=admission,
    )
    host, port = where(net.listen, documents.me.urls[0] if documents.me.urls else "", everywhere=net.lan)
    rounds = documents.spec.gossip.local_rounds or documents.spec.rounds
    with out.progress(documents.spec.name, rounds or None) as advance:
        advance(0.0, "loading the learner")

        def listens(name: str, port: int) -> None:
            advance(0.0, "looking for the others")
            announced(name, port)
            for line in greeting:
                out.notice(line)

        code, summary = run_peer(settings, host, port, TerminalProgress(advance, rounds), listens)
    report(summary, save(folder, end.output) if end.output is not None else None)
    return code


def own_learner(folder: Path, of_job: str, given: str | None) -> str:
    """Return the learner to run. A job that came over the network may name a learner of shoal, but no other code.

    Raises `InvalidJob`.
    """
    if given or not (folder / JOINED).is_file() or of_job in BUILT_IN:
        return given or ""
    named = f"the job names the learner {of_job}" if of_job else "the job names no learner"
    hint = "name the code to run: --learner FILE.py:NAME"
    raise InvalidJob(f"{named}, which came over the network", code="learner.foreign", hint=hint)


def joined(texts: list[str], known: set[str]) -> dict[str, str]:
    """Parse options NAME=URL with addresses of peers. Raises `ShoalError`."""
    found = {}
    for text in texts:
        name, equals, url = text.partition("=")
        if not equals or "://" in name:
            hint = "name the peer: --join a=http://10.0.0.1:9001"
            raise ShoalError(f"--join {text}: not of the form NAME=URL", code="usage.invalid", hint=hint)
        if name not in known:
            hint = f"it names {', '.join(sorted(known))}"
            raise ShoalError(f"--join {text}: the roster has no {name}", code="usage.invalid", hint=hint)
        found[name] = url
    return found


def announced(name: str, port: int) -> None:
    """Print the address of this peer."""
    out.notice(f"{safe(name)} answers on port {port}  [dim](Ctrl-C leaves)[/]")


def where(listen: str | None, url: str, *, everywhere: bool = False) -> tuple[str, int]:
    """Return (host, port) to listen on. Raises `ShoalError`."""
    from shoal.runtime.http.coordinator_url import is_loopback, parse

    if listen is not None:
        host, colon, port = listen.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise ShoalError(f"--listen {listen}: no HOST:PORT", code="usage.invalid", hint="for example 0.0.0.0:9001")
        return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - what was asked for
    if not url:
        return ("0.0.0.0" if everywhere else "127.0.0.1"), 0  # noqa: S104 - others are to find it
    found = parse(url)
    return (found.host if is_loopback(found) else "0.0.0.0"), found.port  # noqa: S104 - as others are to reach it


class TerminalProgress:
    """Progress on the terminal."""

    def __init__(self, advance: Any, rounds: int) -> None:
        self._advance, self._rounds, self._note = advance, rounds, ""

    def on_round(self, effect: LocalRoundDone, live: int) -> None:
        """Print the end of a local round."""
        measured = [
            f"{name} {effect.metrics[name]:.4g}" for name in ("eval/accuracy", "train/loss") if name in effect.metrics
        ]
        of = f" of {self._rounds}" if self._rounds else ""
        text = ", ".join([f"round {effect.round}{of}", f"{live} others", *measured])
        self._advance(float(effect.round), text, self._note)
        out.detail(text)

    def on_event(self, text: str) -> None:
        """Print an event."""
        self._note = text
        out.detail(text)

    def on_waiting(self, lines: Sequence[str]) -> None:
        """Tell for whom this peer waits, and why; with no lines, that it begins."""
        if not lines:
            out.notice("enough are here: learning begins")
            return
        self._advance(0.0, safe(lines[0].partition(";")[0]))
        for number, text in enumerate(lines):
            out.notice(safe(text) if number == 0 else f"  [dim]{safe(text)}[/]")


def report(summary: PeerSummary, model: dict[str, Any] | None = None) -> None:
    """Print the result. `model` describes the written file."""
    sent, received = (sum(summary.traffic[way].values()) for way in ("sent", "received"))
    rows = [
        ("rounds", f"{summary.rounds}{'' if summary.finished else ', not all of them'}"),
        ("holds rounds of", ", ".join(f"{node} {count}" for node, count in summary.rounds_by_peer.items()) or "none"),
    ]
    last = "accuracy, consensus" if summary.is_consistent else "accuracy, before consensus"
    for name, metrics in (("accuracy, local", summary.final_metrics), (last, summary.end_metrics)):
        if "eval/accuracy" in metrics:
            rows.append((name, f"{percent(metrics['eval/accuracy'])}{measured_on(metrics)}"))
    rows += [("sent", size(sent)), ("received", size(received))]
    if not summary.settled:
        rows.append(("open", "an exchange; start this peer again to complete it"))
    if model is not None:
        rows.append(("model", f"{safe(model['path'])}, {size(model['bytes'])}, sha256 {model['sha256']}"))
    out.answer(
        {
            "node": summary.node,
            "rounds": summary.rounds,
            "finished": summary.finished,
            "settled": summary.settled,
            "is_consistent": summary.is_consistent,
            "final_metrics": summary.final_metrics,
            "end_metrics": summary.end_metrics,
            "rounds_by_peer": summary.rounds_by_peer,
            "bytes": summary.traffic,
            "model": model,
        },
        pairs(rows),
    )


def measured_on(metrics: Metrics) -> str:
    """Return the number of test examples behind a measurement."""
    count = metrics.get("eval/examples", 0.0)
    return f"  of {counted(round(count), 'example')} that this peer has held back" if count >= 1 else ""
