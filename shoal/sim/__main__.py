"""Command that runs seeds of a simulated swarm, or one of them with its trace.

python -m shoal.sim 1234 --trace        one run, with a line for each event
python -m shoal.sim --count 5000        seeds 0 to 4999; stops at the first failure, with the command to repeat it
python -m shoal.sim 70000 --count 1000  from another seed on
python -m shoal.sim --peers 1234        peers without a coordinator
python -m shoal.sim --choosing 1234     jobs that select their nodes
python -m shoal.sim --influence 1234    jobs in which a node lies, or has far more data than the others
python -m shoal.sim --switching 1234    jobs that switch between server and gossip
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from shoal.sim.hosts.world import CoordinatedWorld
from shoal.sim.scenarios import influence_runs, peer_swarm, selection_runs, swarm, switching

Run = Callable[[int, Callable[[str], None] | None], Counter[str]]


def main(arguments: list[str] | None = None) -> int:
    """Return 0 when all runs passed, 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m shoal.sim", description="Simulated runs with faults, by seed.")
    parser.add_argument("seed", type=int, nargs="?", default=0, help="the first seed (0)")
    parser.add_argument("--count", type=int, default=1, help="how many seeds (1)")
    parser.add_argument("--trace", action="store_true", help="print a line for each event")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--peers", action="store_true", help="peers without a coordinator")
    which.add_argument("--switching", action="store_true", help="jobs that switch between server and gossip")
    which.add_argument("--influence", action="store_true", help="jobs in which a node lies, or has far more data")
    which.add_argument(
        "--choosing", action="store_true", help="jobs that select their nodes, and nodes with availability windows"
    )
    options = parser.parse_args(arguments)
    draw, one_run = chosen(options)
    seen: Counter[str] = Counter()
    started = time.process_time()
    try:
        for seed in range(options.seed, options.seed + options.count):
            if options.trace:
                print_line(str(draw(seed)))
            seen += one_run(seed, print_line if options.trace else None)
    except swarm.SeedFailed as broken:
        print_line(str(broken))
        return 1
    spent = time.process_time() - started
    counts = ", ".join(f"{count} {what}" for what, count in seen.items())
    print_line(
        f"{options.count} runs, none failed; {counts}; {options.count / max(spent, 1e-9):.0f} runs per CPU-second"
    )
    return 0


def chosen(options: argparse.Namespace) -> tuple[Callable[[int], object], Run]:
    """Return (function that draws a scenario, function that runs a seed)."""
    if options.switching:
        return switching.draw, of_switching
    if options.influence:
        return influence_runs.draw, partial(of_nodes, run=influence_runs.run_seed)
    if options.choosing:
        return selection_runs.draw, partial(of_nodes, run=selection_runs.run_seed)
    return (peer_swarm.draw, of_peers) if options.peers else (swarm.draw, of_nodes)


def of_nodes(
    seed: int,
    write_line: Callable[[str], None] | None,
    run: Callable[[int, Callable[[str], None] | None], CoordinatedWorld] = swarm.run_seed,
) -> Counter[str]:
    """Run that seed with a coordinator, and count events."""
    world = run(seed, write_line)
    return Counter({
        "events": len(world.coordinator.journal),
        "coordinator crashes": world.coordinator.process.number - 1,
        "node crashes": sum(node.process.number - 1 for node in world.nodes.values()),
        "versions": world.coordinator.hub.progress.version,
        "seconds simulated": round(world.clock.now),
    })  # fmt: skip


def of_peers(seed: int, write_line: Callable[[str], None] | None) -> Counter[str]:
    """Run that seed without a coordinator, and count events."""
    world = peer_swarm.run_seed(seed, write_line)
    return Counter({
        "messages": world.mesh.sent,
        "crashes": sum(peer.process.number - 1 for peer in world.peers.values()),
        "local rounds": sum(len(peer.learned) for peer in world.peers.values()),
        "seconds simulated": round(world.clock.now),
    })  # fmt: skip


def of_switching(seed: int, write_line: Callable[[str], None] | None) -> Counter[str]:
    """Run that seed of a job that switches its mode, and count events."""
    world, observer = switching.run_seed(seed, write_line)
    return Counter({
        "merges": observer.merges,
        "coordinator crashes": world.coordinator.process.number - 1,
        "node crashes": sum(node.process.number - 1 for node in world.nodes.values()),
        "seconds simulated": round(world.clock.now),
    })  # fmt: skip


def print_line(line: str) -> None:
    """Write a line to standard output."""
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
