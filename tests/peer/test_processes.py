"""Peers as processes of their own: they come to agree, and nothing is lost by kills at any time."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm.algorithm import tree_slot
from shoal.core.errors import StorageFailed, Unreachable
from shoal.core.model.tree import Slots
from shoal.core.protocol.message import BlobRef
from shoal.mixing.pairwise import Pairwise
from shoal.runtime.blob_files import FileBlobs
from shoal.runtime.http.client import Link
from shoal.sim.checks.conservation import MassConservation, floats
from shoal.sim.hosts.toy_models import ToyLearner
from tests.peer.scenario import folders
from tests.support.forkserver import Forked, shoal
from tests.support.ports import free_ports
from tests.support.waiting import until

TOY = Path(__file__).with_name("toy.py")
PATIENCE_S = 100.0


class Process:
    """One peer: its folder, and the process that works with it, if one does."""

    def __init__(self, folder: Path, number: int, port: int, pause_s: float) -> None:
        self.folder, self.port = folder, port
        self._command = ["peer", "run", str(folder), "--json", "--audit"]
        self._command += ["--learner", f"{TOY}:learner", "--option", f"number={number}"]
        self._command += ["--option", f"pause_s={pause_s}", "--linger", str(PATIENCE_S)]
        self.log = folder / "log.txt"
        self.start()

    def start(self) -> None:
        self.said = self.folder / "said.json"
        self.said.unlink(missing_ok=True)
        self.process = Forked(shoal, *self._command, out=self.said, errors=self.log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def status(self) -> dict[str, Any]:
        """Return its status; nothing while it does not answer."""
        try:
            with Link(f"http://127.0.0.1:{self.port}", read_s=PATIENCE_S) as link:
                found: dict[str, Any] = link.json("GET", "/p2p/toys/status")
        except Unreachable:
            assert self.process.poll() is None, self.log.read_text()
            return {}
        return found

    def until(self, what: Callable[[dict[str, Any]], Any]) -> None:
        """Wait until its status is so."""
        until(f"the status of {self.folder}", lambda: (said := self.status()) and what(said), every_s=0.05)

    def answer(self) -> dict[str, Any]:
        """Return its last output."""
        self.process.wait(PATIENCE_S)
        said = self.said.read_text()
        assert said, self.log.read_text()
        found: dict[str, Any] = json.loads(said)
        assert found["status"] == "ok", found
        return dict(found["data"])


@contextmanager
def processes(root: Path, names: str, *, pause_s: float, **more: Any) -> Iterator[dict[str, Process]]:
    """These peers, running; none is left behind."""
    ports = free_ports(len(names))
    peers = folders(root, names, ports=ports, **more)
    made: dict[str, Process] = {}
    try:
        for number, (name, port) in enumerate(zip(names, ports, strict=True), 1):
            made[name] = Process(peers / name, number, port, pause_s)
        yield made
    finally:
        for one in made.values():
            one.kill()


class AllBodies:
    """The bodies of all peers."""

    def __init__(self, peers: dict[str, Process]) -> None:
        self._folders = [FileBlobs(one.folder / "state" / "blobs") for one in peers.values()]

    def get(self, ref: BlobRef) -> Slots:
        for one in self._folders:
            if one.has(ref.digest):
                return one.get(ref)
        raise StorageFailed(f"{ref} is nowhere")


def settled_books(peers: dict[str, Process]) -> tuple[MassConservation, float]:
    """(the books of what lies on the disks, how far apart the models would be without mixing)."""
    blobs: Any = AllBodies(peers)
    kept = {name: json.loads((one.folder / "state" / "machine.json").read_text()) for name, one in peers.items()}
    weights = {name: found["gossip"]["weight"] for name, found in kept.items()}
    start = ToyLearner(1).init(3)
    books, alone = MassConservation(weights, {"model": start}, blobs, Pairwise().mixer), []
    for name, found in kept.items():
        learned = blobs.get(BlobRef(*found["learned"]))["learned"]
        books.learned = books.learned + weights[name] * floats(learned)
        alone.append((weights[name], floats(start) + floats(learned)))
        books.record_state(name, found["gossip"], learned=False)
        assert floats(tree_slot(blobs.get(BlobRef(*found["gossip"]["slots"])), "model")).shape == alone[-1][1].shape
    books.scale = float(np.abs(books.learned).max())
    whole = sum(weight for weight, _ in alone)
    mean = sum(weight * model for weight, model in alone) / whole
    apart = float(sum(weight * np.sum((model - mean) ** 2) for weight, model in alone) / whole)
    return books, apart


@pytest.mark.timeout(400)
def test_nothing_is_lost_when_one_is_killed_again_and_again(tmp_path: Path) -> None:
    """All make their rounds; the weighted sum of all models is where it was, plus all that was learned, to 1e-6."""
    with processes(tmp_path, "abc", pause_s=0.3, rounds=6) as peers:
        victim, numbers = peers["c"], []
        for round_ in (2, 4):
            victim.until(lambda said, round_=round_: said["local_rounds"] >= round_)
            numbers.append(victim.status()["process_number"])
            victim.kill()
            victim.start()
        said = {name: one.answer() for name, one in peers.items()}
        assert {name: one["rounds"] for name, one in said.items()} == dict.fromkeys("abc", 6)
        assert all(one["finished"] for one in said.values())
        books, apart = settled_books(peers)
        assert books.drift() < 1e-6
        assert books.variance() < 0.01 * apart
        assert all(one["bytes"]["sent"] for one in said.values())
        numbers.append(json.loads((victim.folder / "state" / "machine.json").read_text())["gossip"]["process_number"])
        assert numbers == sorted(set(numbers))
        assert len(numbers) == 3


@pytest.mark.timeout(200)
def test_ctrl_c_once_settles_and_leaves_and_it_goes_on_later(tmp_path: Path) -> None:
    with processes(tmp_path, "ab", pause_s=0.1, rounds=100) as peers:
        one = peers["b"]
        one.until(lambda said: said["local_rounds"] >= 3)
        process_number = one.status()["process_number"]
        one.process.send_signal(signal.SIGINT)
        said = one.answer()
        assert one.process.returncode == 130
        assert said["settled"]
        assert not said["finished"]
        peers["a"].until(lambda found: found["peers"]["b"]["state"] == "left")
        one.start()
        one.until(lambda found: found["process_number"] > process_number and found["local_rounds"] > said["rounds"])
        peers["a"].until(lambda found: found["peers"]["b"]["state"] == "alive")


@pytest.mark.timeout(200)
def test_ctrl_c_ends_the_training_as_well(tmp_path: Path) -> None:
    """It is in the middle of something that takes for ever, once or more often, before the peer has even begun."""
    with processes(tmp_path, "a", pause_s=3600.0, min_peers=1) as peers:
        one = peers["a"]
        children = until("its training", lambda: children_of(one.process.pid))

        def interrupted() -> bool:
            one.process.send_signal(signal.SIGINT)
            return one.process.poll() is not None

        until("its end", interrupted, every_s=0.2)  # two signals that come at once are one
        for child in children:
            until("the end of its training", lambda child=child: is_over(child))


def is_over(process: int) -> bool:
    """Return whether a process has ended, reaped or not."""
    return not Path(f"/proc/{process}/stat").exists() or state_of(process) == "Z"


def children_of(parent: int) -> list[int]:
    """The processes that it has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def state_of(process: int) -> str:
    """R, S, Z, …; "Z" for one that is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"
