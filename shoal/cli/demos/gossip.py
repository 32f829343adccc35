"""`shoal demo --gossip`: peers and a job on real data, without a coordinator."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli.demos.plumbing import HOST, RUN_S, peer_status
from shoal.cli.terminal.output import out
from shoal.cli.terminal.text import number, pairs, percent, safe, seconds, size, table
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from rich.table import Table

    from shoal.cli.process.processes import DemoProcess, ProcessGroup

POLL_S = 0.5
LEARNER = "shoal.learn.digits:compared"
JOB = """
name = "digits"
rounds = {rounds}
seed = {seed}
learner = "{learner}"

[options]
parts = {peers}
split = "{split}"
seed = {seed}

[algorithm]
name = "fedavg"
epochs = 3
batch_size = 10
lr = 0.1

[gossip]
min_peers = {peers}
"""


@dataclass(frozen=True)
class DemoPeers:
    """The peers and their job, with one port per peer."""

    rounds: int
    split: str
    seed: int
    device: str
    ports: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        """The names of the peers."""
        return [f"peer-{number}" for number in range(1, len(self.ports) + 1)]


def demo(peers: DemoPeers) -> None:
    """Run the demo and clean up. Raises `ShoalError`."""
    from shoal.cli.process.processes import process_group

    started = time.monotonic()
    with process_group("shoal-demo-") as processes:
        folder = create_peers(processes.folder, peers)
        for part, (name, port) in enumerate(zip(peers.names, peers.ports, strict=True)):
            arguments = ["--json", "peer", "run", str(folder / name), f"--option=part={part}"]
            arguments += ["--listen", f"{HOST}:{port}", "--device", peers.device]
            processes.start(name, arguments, imports="shoal_peer.process")
        await_peers(processes, peers)
        answer([read_result(child) for child in processes.children], time.monotonic() - started)


def create_peers(root: Path, peers: DemoPeers) -> Path:
    """Create a folder per peer, as `shoal peer init` does."""
    from shoal.core.algorithm.learner import fresh_weights
    from shoal.learn.loading import load_learner
    from shoal_peer.provision import InvitedNode, invite

    asked = {"rounds": peers.rounds, "seed": peers.seed, "split": peers.split, "peers": len(peers.ports)}
    job = root / "digits.toml"
    job.write_text(JOB.format(learner=LEARNER, **asked), encoding="utf-8")
    options = {"parts": len(peers.ports), "split": peers.split, "seed": peers.seed}
    model = fresh_weights(load_learner(LEARNER, options), peers.seed)
    urls = [f"http://{HOST}:{port}" for port in peers.ports]
    invite(job, model, [InvitedNode(name, url) for name, url in zip(peers.names, urls, strict=True)], root / "peers")
    return root / "peers"


def await_peers(processes: ProcessGroup, peers: DemoPeers) -> None:
    """Show progress until all peers have ended."""
    end, last = time.monotonic() + RUN_S, dict[str, dict[str, Any]]()
    with out.progress("digits", float(peers.rounds * len(peers.ports))) as advance:
        while not processes.all_ended():
            if time.monotonic() > end:
                tail = processes.children[0].tail()
                raise ShoalError(f"not over after {seconds(RUN_S)}; the end of a log:\n{tail}", code="demo.time-out")
            for name, port in zip(peers.names, peers.ports, strict=True):
                last[name] = peer_status("digits", port) or last.get(name, {})
            rounds = [int(one.get("local_rounds", 0)) for one in last.values()]
            advance(float(sum(rounds)), progress_text(list(last.values()), peers.rounds))
            time.sleep(POLL_S)


def progress_text(peers: list[dict[str, Any]], rounds: int) -> str:
    """Return the progress as one line."""
    made = [one.get("local_rounds", 0) for one in peers]
    sent = sum(sum(one["bytes"]["sent"].values()) for one in peers if one)
    if min(made, default=0) < rounds:
        step = f"round {min(made, default=0)} to {max(made, default=0)} of {rounds}" if any(made) else "starting"
    else:
        step = "models draw together"
    return f"{len(peers)} peers, {step}, {size(sent)} sent"


def read_result(child: DemoProcess) -> dict[str, Any]:
    """Return the result of a peer from its log. Raises `ShoalError`."""
    for line in reversed(child.log.read_text(encoding="utf-8", errors="replace").splitlines()):
        if line.startswith("{") and '"status"' in line:
            found: dict[str, Any] = json.loads(line)
            return dict(found["data"])
    raise ShoalError(f"{child.name} has not reported its result; its log:\n{child.tail()}", code="demo.crashed")


def answer(peers: list[dict[str, Any]], took_s: float) -> None:
    """Print the result of each peer."""
    rows = []
    for one in peers:
        sent, received = (sum(one["bytes"][way].values()) for way in ("sent", "received"))
        rows.append({
            "name": one["node"],
            "rounds": one["rounds"],
            "own_accuracy": one["final_metrics"].get("eval/accuracy"),
            "accuracy": one["end_metrics"].get("eval/accuracy"),
            "sent_bytes": sent,
            "received_bytes": received,
        })  # fmt: skip
    final_accuracies = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    least = min(final_accuracies, default=None)
    summary = [
        ("accuracy", f"[bold]{percent(least)}[/] or more, on held-out digits"),
        ("server", "none"),
        ("wall time", seconds(took_s) + " from start to end"),
    ]
    out.answer({"peers": rows, "accuracy": least, "wall_s": took_s}, peer_table(rows), pairs(summary))


def peer_table(rows: list[dict[str, Any]]) -> Table:
    """Return a table with one row per peer."""
    numeric = ("rounds", "local model", "consensus model", "sent", "received")
    shown = table("peer", *numeric, right=numeric)
    for row in rows:
        shown.add_row(
            safe(row["name"]),
            number(row["rounds"]),
            percent(row["own_accuracy"]),
            percent(row["accuracy"]),
            size(row["sent_bytes"]),
            size(row["received_bytes"]),
        )
    return shown
