"""`shoal demo --gossip`: peers and a job on real data, all on this machine, and no server."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli.demo_parts import RUN_S
from shoal.cli.output import out
from shoal.cli.text import number, pairs, percent, safe, seconds, size, table
from shoal.core.errors import ShoalError, Unreachable

if TYPE_CHECKING:
    from rich.table import Table

    from shoal.cli.processes import Child, Household

HOST = "127.0.0.1"
LOOK_S = 0.5
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
class Company:
    """Who takes part, and in what. `ports`: one for each peer."""

    rounds: int
    split: str
    seed: int
    device: str
    ports: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        """The peers."""
        return [f"peer-{number}" for number in range(1, len(self.ports) + 1)]


def demo(company: Company) -> None:
    """Run it from start to end. Raises `ShoalError`; whatever happens, nothing is left behind."""
    from shoal.cli.processes import household

    started = time.monotonic()
    with household("shoal-demo-") as house:
        folder = invited(house.folder, company)
        for part, (name, port) in enumerate(zip(company.names, company.ports, strict=True)):
            arguments = ["--json", "peer", "run", str(folder / name), f"--option=part={part}"]
            arguments += ["--listen", f"{HOST}:{port}", "--device", company.device]
            house.start(name, arguments, imports="shoal_peer.running")
        watched(house, company)
        answer([final(child) for child in house.children], time.monotonic() - started)


def invited(root: Path, company: Company) -> Path:
    """What `shoal peer new` makes: a folder for each peer."""
    from shoal.learn.loading import load_learner
    from shoal_peer.invite import Invited, invite

    asked = {"rounds": company.rounds, "seed": company.seed, "split": company.split, "peers": len(company.ports)}
    job = root / "digits.toml"
    job.write_text(JOB.format(learner=LEARNER, **asked), encoding="utf-8")
    options = {"parts": len(company.ports), "split": company.split, "seed": company.seed}
    model = load_learner(LEARNER, options).init(company.seed)
    urls = [f"http://{HOST}:{port}" for port in company.ports]
    invite(job, model, [Invited(name, url) for name, url in zip(company.names, urls, strict=True)], root / "peers")
    return root / "peers"


def watched(house: Household, company: Company) -> None:
    """Show how it goes until all peers have ended by themselves."""
    end, last = time.monotonic() + RUN_S, dict[str, dict[str, Any]]()
    with out.progress("digits", float(company.rounds * len(company.ports))) as advance:
        while not house.all_ended():
            if time.monotonic() > end:
                tail = house.children[0].tail()
                raise ShoalError(f"not over after {seconds(RUN_S)}; the end of a log:\n{tail}", code="demo.time-out")
            for name, port in zip(company.names, company.ports, strict=True):
                last[name] = status(port) or last.get(name, {})
            rounds = [int(one.get("round", 0)) for one in last.values()]
            advance(float(sum(rounds)), said(list(last.values()), company.rounds))
            time.sleep(LOOK_S)


def status(port: int) -> dict[str, Any]:
    """What a peer says of itself; nothing while it does not answer."""
    from shoal.runtime.http import Link

    try:
        with Link(f"http://{HOST}:{port}", read_s=5.0) as link:
            found: dict[str, Any] = link.json("GET", "/p2p/digits/status")
    except Unreachable:
        return {}
    return found


def said(peers: list[dict[str, Any]], rounds: int) -> str:
    """How far they are, in a line."""
    made = [one.get("round", 0) for one in peers]
    sent = sum(sum(one["bytes"]["sent"].values()) for one in peers if one)
    if min(made, default=0) < rounds:
        step = f"round {min(made, default=0)} to {max(made, default=0)} of {rounds}" if any(made) else "starting"
    else:
        step = "models draw together"
    return f"{len(peers)} peers, {step}, {size(sent)} sent"


def final(child: Child) -> dict[str, Any]:
    """What a peer has said at its end. Raises `ShoalError`."""
    for line in reversed(child.log.read_text(encoding="utf-8", errors="replace").splitlines()):
        if line.startswith("{") and '"status"' in line:
            found: dict[str, Any] = json.loads(line)
            return dict(found["data"])
    raise ShoalError(f"{child.name} has not said what came of it; its log:\n{child.tail()}", code="demo.crashed")


def answer(peers: list[dict[str, Any]], took_s: float) -> None:
    """What came of it, for each peer."""
    rows = []
    for one in peers:
        sent, received = (sum(one["bytes"][way].values()) for way in ("sent", "received"))
        rows.append({
            "name": one["node"],
            "rounds": one["rounds"],
            "own_accuracy": one["own"].get("eval/accuracy"),
            "accuracy": one["drawn"].get("eval/accuracy"),
            "sent_bytes": sent,
            "received_bytes": received,
        })  # fmt: skip
    drawn = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    least = min(drawn, default=None)
    told = [
        ("accuracy", f"[bold]{percent(least)}[/] at least, on digits that no peer has"),
        ("server", "none"),
        ("wall time", seconds(took_s) + " from start to end"),
    ]
    out.answer({"peers": rows, "accuracy": least, "wall_s": took_s}, peer_table(rows), pairs(told))


def peer_table(rows: list[dict[str, Any]]) -> Table:
    """A peer in each row."""
    numeric = ("rounds", "own model", "drawn together", "sent", "received")
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
