"""Run seeds of the swarm, or one of them with its trace.

python -m shoal.sim 1234 --trace        one run, told line by line
python -m shoal.sim --count 5000        seeds 0 to 4999; the first that breaks ends it, and says how to repeat it
python -m shoal.sim 70000 --count 1000  from another seed on
python -m shoal.sim --peers 1234        of the swarm without a server
python -m shoal.sim --choosing 1234     of the swarm of jobs that choose their nodes
python -m shoal.sim --switching 1234    of the swarm of jobs that move between server and peers
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from shoal.sim import choosing, peer_swarm, swarm, switching
from shoal.sim.world import World

Run = Callable[[int, Callable[[str], None] | None], Counter[str]]


def main(arguments: list[str] | None = None) -> int:
    """Return 0 when all went well, 1 when a run broke."""
    parser = argparse.ArgumentParser(prog="python -m shoal.sim", description="Simulated runs with faults, by seed.")
    parser.add_argument("seed", type=int, nargs="?", default=0, help="the first seed (0)")
    parser.add_argument("--count", type=int, default=1, help="how many seeds (1)")
    parser.add_argument("--trace", action="store_true", help="tell everything that happens")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--peers", action="store_true", help="peers that mix by themselves, without a coordinator")
    which.add_argument("--switching", action="store_true", help="jobs that move to their peers and back")
    which.add_argument("--choosing", action="store_true", help="jobs that choose their nodes, and nodes with hours")
    given = parser.parse_args(arguments)
    draw, one_run = chosen(given)
    seen: Counter[str] = Counter()
    started = time.process_time()
    try:
        for seed in range(given.seed, given.seed + given.count):
            if given.trace:
                say(str(draw(seed)))
            seen += one_run(seed, say if given.trace else None)
    except swarm.Broken as broken:
        say(str(broken))
        return 1
    spent = time.process_time() - started
    told = ", ".join(f"{count} {what}" for what, count in seen.items())
    say(f"{given.count} runs, none broken; {told}; {given.count / max(spent, 1e-9):.0f} runs per CPU-second")
    return 0


def chosen(given: argparse.Namespace) -> tuple[Callable[[int], object], Run]:
    """What draws a run, and what lets it happen."""
    if given.switching:
        return switching.draw, of_switching
    if given.choosing:
        return choosing.draw, partial(of_nodes, run=choosing.run_seed)
    return (peer_swarm.draw, of_peers) if given.peers else (swarm.draw, of_nodes)


def of_nodes(
    seed: int,
    tell: Callable[[str], None] | None,
    run: Callable[[int, Callable[[str], None] | None], World] = swarm.run_seed,
) -> Counter[str]:
    """Run that seed under a coordinator, and count what happened."""
    world = run(seed, tell)
    return Counter({
        "events": len(world.coordinator.journal),
        "coordinator crashes": world.coordinator.process - 1,
        "node crashes": sum(node.process - 1 for node in world.nodes.values()),
        "versions": world.coordinator.hub.version,
        "seconds simulated": round(world.clock.now),
    })  # fmt: skip


def of_peers(seed: int, tell: Callable[[str], None] | None) -> Counter[str]:
    """Run that seed without one, and count what happened."""
    flock = peer_swarm.run_seed(seed, tell)
    return Counter({
        "messages": flock.mesh.sent,
        "crashes": sum(peer.disk.boot - 1 for peer in flock.peers.values()),
        "local rounds": sum(len(peer.learned) for peer in flock.peers.values()),
        "seconds simulated": round(flock.clock.now),
    })  # fmt: skip


def of_switching(seed: int, tell: Callable[[str], None] | None) -> Counter[str]:
    """Run that seed of a job that moves, and count what happened."""
    world, witness = switching.run_seed(seed, tell)
    return Counter({
        "merges": witness.merges,
        "coordinator crashes": world.coordinator.process - 1,
        "node crashes": sum(node.process - 1 for node in world.nodes.values()),
        "seconds simulated": round(world.clock.now),
    })  # fmt: skip


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
