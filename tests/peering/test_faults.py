"""Edge clients that are away, on a network that is cut, loses and delays, and are killed meanwhile: nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest

from tests.peering import fault_injector
from tests.peering.scenario import JOB, LONG, Process, acquainted, begin, check_merge
from tests.support.coordinator import Server
from tests.support.waiting import until

WEIGHTS = {"a": 10.0, "b": 20.0, "c": 30.0, "d": 40.0}
SIDES = ("ab", "cd")
DRIFT_MAX = 1e-6
"""Error of the weighted mean, relative to its movement: a lost or doubled step would be some 1e-2."""

wait = partial(until, every_s=0.1)


@pytest.fixture
def nodes(server: Server, process: Callable[..., Process]) -> dict[str, Process]:
    """Four of them, away from a coordinator that still looks on."""
    mixing = {"name": "pairwise", "exchange_timeout_s": 1.0, "slot_timeout_s": 2.0}
    begin(server, len(WEIGHTS), probe_interval_s=0.5, mixing=mixing, **LONG)
    given = {"trainer": "thread"}
    made = {
        name: process(name, weight=weight, pause_s=0.1, main=fault_injector.main, given=given).start()
        for name, weight in WEIGHTS.items()
    }
    acquainted(server, list(made.values()))
    server.post(f"/jobs/{JOB}/switch", {"to": "gossip"})
    wait("all to know each other's rounds", lambda: all(seen(one).keys() == WEIGHTS.keys() for one in made.values()))
    return made


def alive(node: Process) -> set[str]:
    """Return the peers that it believes alive, itself included."""
    return {name for name, peer in node.status().get("peers", {}).items() if peer["state"] == "alive"} | {node.name}


def seen(node: Process) -> dict[str, int]:
    """Return the peers whose rounds its model holds."""
    found: dict[str, int] = node.status().get("rounds_by_peer", {})
    return found


def back(server: Server) -> None:
    """Call all back; their work counts once, and the weighted mean is where it must be."""
    before = server.job(JOB)["version"]
    server.post(f"/jobs/{JOB}/switch", {"to": "server"})
    wait("rounds at the server", lambda: server.job(JOB)["version"] >= before + 2)
    check_merge(server, before, relative=DRIFT_MAX)


@pytest.mark.timeout(400)
def test_a_split_in_halves_heals(server: Server, nodes: dict[str, Process], tmp_path: Path) -> None:
    """Each half goes on by itself; afterwards all are alive again, and each model comes to hold the others' rounds."""
    pairs = [pair for pair in permutations(WEIGHTS, 2) if not any(set(pair) <= set(side) for side in SIDES)]
    (tmp_path / "cut.new").write_text("".join(f"{one} {other}\n" for one, other in pairs))
    (tmp_path / "cut.new").rename(tmp_path / "cut")
    for side in SIDES:
        half = [nodes[name] for name in side]
        wait("the other half to be gone", lambda half=half, side=side: all(alive(one) == set(side) for one in half))
    apart = {name: seen(node)[name] for name, node in nodes.items()}
    for side in SIDES:
        one = nodes[side[0]]
        wait("their own rounds", lambda one=one, side=side: all(seen(one)[name] > apart[name] + 2 for name in side))
    ours, theirs = seen(nodes["a"]), seen(nodes["c"])
    assert all(ours[name] < theirs[name] for name in "cd"), "nothing came across"
    assert all(theirs[name] < ours[name] for name in "ab")
    (tmp_path / "cut").unlink()
    wait("all to be alive", lambda: all(alive(node) == set(WEIGHTS) for node in nodes.values()))
    wait("the rounds of that time", lambda: all(seen(nodes["a"])[name] >= theirs[name] for name in "cd"))
    wait("the same there", lambda: all(seen(nodes["c"])[name] >= ours[name] for name in "ab"))
    back(server)


@pytest.mark.timeout(400)
def test_kills_lost_answers_and_late_batches_cost_nothing(
    server: Server, nodes: dict[str, Process], tmp_path: Path
) -> None:
    """In the worst weather, one of four is killed three times, without warning."""
    (tmp_path / "weather").touch()
    victim = nodes["c"]
    for _ in range(3):
        made = victim.status()["local_rounds"]
        wait("its rounds", lambda made=made: victim.status().get("local_rounds", 0) >= made + 2)
        victim.kill()
        victim.start()
        wait("it to be back", lambda: victim.status().get("state") == "gossip")
    made = seen(victim)["c"]
    wait("its rounds elsewhere", lambda: all(seen(node).get("c", 0) > made for node in nodes.values()))
    (tmp_path / "weather").unlink()
    back(server)
