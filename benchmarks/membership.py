"""Membership without a server, simulated: how soon a death is known, how often a living peer is given up, the cost.

Time is virtual, so nothing here depends on the machine. A tenth of the fleet is killed; messages are lost for 300 s,
with and without Lifeguard; each process is held up for 3 to 8 s, a tenth of the time; the fleet is split in halves for
120 s.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from typing import Any

from harness import arguments, show

from shoal.core.membership.swim_config import SwimConfig
from shoal.sim.network.faults import PeerNetworkConditions
from shoal.sim.scenarios.membership_runs import MembershipFleet, halves, names

SWIM = SwimConfig(health_max=0, suspicion=3.0, slack=1.0, buddy=False)
"""Without Lifeguard; its suspicions last for about as long as Lifeguard takes to give up a dead peer."""
FULL = SwimConfig()
WATCHED_S = 300.0
SPLIT_S = 120.0
PATIENCE_S = 300.0
STALL_S = (3.0, 8.0)
STALLED = 0.11
"""The share of its time for which a process is held up."""


@dataclass(frozen=True)
class Deaths:
    """A tenth of a calm fleet dies at once."""

    first_s: float
    all_s: float


@dataclass(frozen=True)
class Living:
    """A fleet in which no peer dies."""

    false_deaths: int
    messages: float
    kib: float


def settled(n: int, seed: int, pace: SwimConfig = FULL) -> MembershipFleet:
    """Return a fleet that has been calm for a minute."""
    fleet = MembershipFleet(names(n), seed=seed, pace=pace)
    fleet.start()
    fleet.until(PATIENCE_S)
    fleet.hosts.run(fleet.clock.now + 60.0)
    return fleet


def start_s(n: int, seed: int) -> float:
    """Return the seconds from the start of all processes at once until all know all."""
    fleet = MembershipFleet(names(n), seed=seed)
    fleet.start()
    return fleet.until(PATIENCE_S) or PATIENCE_S


def deaths(n: int, seed: int) -> Deaths:
    """Return the seconds until each of the dead is given up by one peer (the slowest of them), and all by all."""
    fleet = settled(n, seed)
    begun = fleet.clock.now
    dead = fleet.rng.sample(names(n), max(1, n // 10))
    fleet.kill(dead)
    while not all(fleet.given_up_by(node) for node in dead):
        fleet.hosts.run(fleet.clock.now + 0.1)
    first = fleet.clock.now - begun
    fleet.until(PATIENCE_S)
    return Deaths(first, fleet.clock.now - begun)


def living(n: int, seed: int, pace: SwimConfig, loss: float = 0.0, stalls: bool = False) -> Living:
    """Run five minutes of loss, or of processes that are stopped now and then."""
    fleet = settled(n, seed, pace)
    fleet.hosts.set_conditions(PeerNetworkConditions(message_loss=loss))
    if stalls:
        for name in names(n):
            stall_later(fleet, name)
    before = len(fleet.false_deaths), fleet.messages, fleet.bytes
    fleet.hosts.run(fleet.clock.now + WATCHED_S)
    per = n * WATCHED_S
    return Living(
        len(fleet.false_deaths) - before[0], (fleet.messages - before[1]) / per, (fleet.bytes - before[2]) / per / 1024
    )


def stall_later(fleet: MembershipFleet, name: str) -> None:
    """Hold this process up, again and again."""
    mean = sum(STALL_S) / 2
    fleet.clock.after(fleet.rng.expovariate(STALLED / (1 - STALLED) / mean), stall, fleet, name)


def stall(fleet: MembershipFleet, name: str) -> None:
    """Hold this process up, and plan the next time."""
    seconds = fleet.rng.uniform(*STALL_S)
    fleet.hosts.stall(name, seconds)
    fleet.clock.after(seconds, stall_later, fleet, name)


def heal_s(n: int, seed: int) -> tuple[float, int]:
    """Return the seconds from the healing of a split until all know all; and the false alarms in a minute."""
    fleet = settled(n, seed)
    fleet.deaths_expected = True
    fleet.hosts.split(halves(names(n))[0])
    fleet.hosts.run(fleet.clock.now + SPLIT_S)
    fleet.hosts.heal()
    fleet.deaths_expected = False
    seconds = fleet.until(PATIENCE_S) or PATIENCE_S
    fleet.hosts.run(fleet.clock.now + 60.0)
    return seconds, len(fleet.false_deaths)


def row(n: int, seeds: range) -> dict[str, Any]:
    """Return a row for this many peers: means over the seeds."""
    mean = statistics.fmean
    ended = [deaths(n, seed) for seed in seeds]
    healed = [heal_s(n, seed) for seed in seeds]
    calm = [living(n, seed, FULL) for seed in seeds]
    bad = [living(n, seed, FULL, loss=0.2) for seed in seeds]
    found: dict[str, Any] = {
        "peers": n,
        "start_s": mean(start_s(n, seed) for seed in seeds),
        "first_s": mean(d.first_s for d in ended),
        "all_s": mean(d.all_s for d in ended),
        "heal_s": mean(seconds for seconds, _ in healed),
        "false_after_heal": mean(false for _, false in healed),
        "msgs_s": mean(one.messages for one in calm),
        "kib_s": mean(one.kib for one in calm),
        "msgs_s_20%": mean(one.messages for one in bad),
        "kib_s_20%": mean(one.kib for one in bad),
    }
    for loss in (0.05, 0.1, 0.2):
        for name, pace in (("swim", SWIM), ("lifeguard", FULL)):
            worlds = bad if (pace, loss) == (FULL, 0.2) else [living(n, seed, pace, loss) for seed in seeds]
            found[f"{loss:.0%} {name}"] = mean(one.false_deaths for one in worlds)
    for name, pace in (("swim", SWIM), ("lifeguard", FULL)):
        found[f"stalls {name}"] = mean(living(n, seed, pace, stalls=True).false_deaths for seed in seeds)
    return found


def main() -> int:
    """Measure, and print."""
    parser = arguments(__doc__)
    parser.add_argument("--peers", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows = [row(n, range(options.seeds)) for n in options.peers]
    times = ("peers", "start_s", "first_s", "all_s", "heal_s", "msgs_s", "kib_s", "msgs_s_20%", "kib_s_20%")
    false = [key for key in rows[0] if key not in times]
    show("how soon, and for how much per peer", [{key: found[key] for key in times} for found in rows], options.json)
    show(
        f"living peers given up in {WATCHED_S:.0f} s",
        [{key: found[key] for key in ("peers", *false)} for found in rows],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
