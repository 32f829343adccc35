"""A coordinator's process, and nodes that may do without it: in threads of the test's own, or as processes."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from safetensors.numpy import load

from shoal.core.failover.failover_peer import FailoverPeer
from shoal.runtime.worker_ports import JobPump
from shoal_edge_client.joined_node import JoinedNode
from shoal_edge_client.peering.failover_pump import FailoverPump
from shoal_edge_client.settings import EdgeSettings
from tests.support import edge_process
from tests.support.coordinator import Server
from tests.support.edge_node import EdgeNode
from tests.support.forkserver import Forked
from tests.support.learners import CountingLearner
from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE_S, pause, until

ROOT = Path(__file__).parents[2]
JOB = "main"
SHORT = {
    "coordinator_timeout_s": 3.0,
    "suspicion_s": 1.5,
    "min_gossip_s": 2.0,
    "open_exchanges_timeout_s": 3.0,
    "probe_interval_s": 0.5,
}
LONG = {"coordinator_timeout_s": 3600.0}
MIXING = {"name": "pairwise", "exchange_timeout_s": 2.0, "slot_timeout_s": 4.0}
"""Models have a few numbers: no wait is as long as for a large one."""


def settings(server: Server, folder: Path, name: str, **more: Any) -> dict[str, Any]:
    given = {"peer_listen": "127.0.0.1:0", "jobs": [JOB], "retry_pause_max_s": 0.5, **more}
    given["token"] = more["token"] if "token" in more else server.token()
    return {"url": server.url, "state_dir": folder / name, "name": name, **given}


class Threaded(EdgeNode):
    """A node that may do without the coordinator, in a thread of its own."""

    def __init__(self, server: Server, folder: Path, name: str, learner: CountingLearner, **more: Any) -> None:
        super().__init__(learner, **settings(server, folder, name, **more))
        self.start()

    @property
    def pump(self) -> JobPump | None:
        job = self.agent.jobs.get(JOB)
        return job.pump if job is not None else None

    @property
    def peer(self) -> FailoverPeer:
        pump = self.pump
        assert isinstance(pump, FailoverPump), self.outcome
        return pump.peer

    def is_acquainted(self, others: int) -> bool:
        """Return whether it knows the others, and that they are there."""
        pump = self.pump
        group = pump.group.group if isinstance(pump, FailoverPump) else None
        return group is not None and len(group.membership.live()) >= others


class Looping(Threaded):
    """The same with a training loop of the user's own, which does what a `CountingLearner` does."""

    def __init__(self, server: Server, folder: Path, name: str, learner: CountingLearner, **more: Any) -> None:
        self._weight, self._pause_s = int(learner.weight), learner.pause_s
        given = EdgeSettings.model_validate(settings(server, folder, name, **more))
        self.node, self.outcome = JoinedNode(given), []
        self._tasks = self.node.tasks({"w": np.full(8, 0.25, np.float32)}, examples=self._weight)
        assert self.node._process is not None
        self.agent = self.node._process._agent
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        try:
            for task in self._tasks:
                pause(self._pause_s)
                task.report({"w": task.arrays()["w"] + np.float32(1.0)}, examples=self._weight)
        except BaseException as error:
            self.outcome.append(error)
        else:
            self.outcome.append(True)

    def leave(self) -> None:
        self.node._leave(unfinished=True)


class Process:
    """A node in a process of its own, that can be killed: really, or by itself at a named point."""

    def __init__(self, server: Server, folder: Path, name: str, **options: Any) -> None:
        (self.port,) = free_ports(1)
        listens = f"127.0.0.1:{self.port}"
        self._given = {**settings(server, folder, name, peer_listen=listens), **options.pop("given", {})}
        self._main = options.pop("main", edge_process.main)
        self._options, self.folder, self.name = options, folder, name
        self._process: Forked | None = None

    def start(self, point: str = "nowhere", nth: int = 1, since: Path | None = None) -> Process:
        """Begin a life, which ends at that point when it is come to for the nth time (`since` that file exists)."""
        given = {**self._given, "jobs": f'["{JOB}"]', "learner": str(ROOT / "tests/support/learners.py:counting")}
        options = {key: str(value) if isinstance(value, Path) else value for key, value in self._options.items()}
        settings = {
            "FAULTS": str(self.folder),
            "POINTS": str(self.folder / f"{self.name}.points"),
            "SINCE": str(since or ""),
            **{f"SHOAL_EDGE__{key.upper()}": str(value) for key, value in given.items()},
            "SHOAL_EDGE__OPTIONS": str(options).replace("'", '"'),
        }
        log = self.folder / f"{self.name}.log"
        self._process = Forked(self._main, point, nth, out=log, errors=log, more=settings)
        return self

    @property
    def ended(self) -> int | None:
        """How it ended; None while it lives."""
        assert self._process is not None
        return self._process.poll()

    def kill(self, number: int = signal.SIGKILL) -> int:
        """End it like that."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(PATIENCE_S)

    def status(self) -> dict[str, Any]:
        """Return its status; nothing while it does not answer."""
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.port}/p2p/{JOB}/status", timeout=PATIENCE_S)
        except httpx.TransportError:
            return {}
        return answer.json() if answer.status_code == 200 else {}

    def is_acquainted(self, others: int) -> bool:
        found = self.status().get("peers", {}).values()
        return sum(peer["state"] == "alive" for peer in found) >= others


def begin(server: Server, nodes: int, **gossip: Any) -> None:
    """A job of many rounds that its nodes may carry on."""
    server.begin(JOB, nodes=nodes, rounds=10_000, gossip={"allowed": True, "mixing": MIXING, **gossip})


def acquainted(server: Server, nodes: list[Any], version: int = 1) -> None:
    """Wait until the job runs, and its nodes know each other."""
    until("the job to run", lambda: server.job(JOB)["model"] and server.job(JOB)["version"] >= version)
    others = len(nodes) - 1
    until("the nodes to know each other", lambda: all(node.is_acquainted(others) for node in nodes), every_s=0.1)


def model(server: Server, number: int) -> float:
    """The one number of which a version's model consists."""
    found = load(server.request("GET", f"/api/v1/jobs/{JOB}/models/{number}").content)["w"]
    assert np.all(found == found[0])
    return float(found[0])


def versions(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get(f"/jobs/{JOB}/versions")["versions"]
    return found


def check_merge(server: Server, before: int, relative: float = 1e-4) -> float:
    """Check that the next version holds all nodes' work of the time away; return its number of rounds.

    Each local round adds one, and exchanges leave the weighted mean where it is: so the new model is the old one, and
    the weighted mean of the numbers of local rounds, which the nodes report.
    """
    found = {version["number"]: version for version in versions(server)}
    assert sorted(found) == list(range(len(found))), "versions are consecutive"
    rounds = found[before]["metrics"]["gossip/local_rounds"]  # reports are measurements of the version they start from
    assert found[before + 1]["why"].startswith("back at the server")
    moved = model(server, before + 1) - model(server, before)
    assert abs(moved - rounds) < relative * (1 + rounds), (moved, rounds)
    return float(rounds)
