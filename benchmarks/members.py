"""Cost of a join and a report at the hub alone, by the number of the job's nodes.

python benchmarks/members.py --members 100 1000 10000

No sockets, no journal: a hub in this process, a model of 4 KB, rounds in which all take part. `looked_at_us` is the
price of a report to a schedule that is shown each, in the same run.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from harness import arguments, show

from shoal.core.algorithm.algorithm import Algorithm
from shoal.core.job.job_plan import JobPlan
from shoal.core.model.tree import Tree
from shoal.core.protocol.machine import Restarted
from shoal.core.protocol.message import BlobRef, Join, Report, Task
from shoal.core.scheduling.schedule import Decision, View, Wait
from shoal.core.server.hub import Hub
from shoal.schedules.rounds import Rounds
from shoal.sim.network.blobs import MemoryBlobs

PARAMETERS = 1000


@dataclass(frozen=True)
class Watchful(Rounds):
    """Rounds that want to be shown each report."""

    def decide(self, view: View) -> list[Decision]:
        return [replace(one, reports=0) if isinstance(one, Wait) else one for one in super().decide(view)]


class Job:
    """A hub and the names of its members."""

    def __init__(self, schedule: Rounds, members: int) -> None:
        blobs = MemoryBlobs()
        start, self.update = (blobs.put({"model": Tree.of({"w": np.full(PARAMETERS, x, np.float32)})}) for x in (0, 1))
        self.hub = Hub(JobPlan(1000, 7, "float64", start), Algorithm(), schedule, blobs)
        self.hub.on(Restarted(), 0.0)
        self.names = [f"node-{number:06}" for number in range(members)]

    def join(self) -> float:
        """Join all, and return the microseconds of processor time for each."""
        began = time.process_time()
        for name in random.Random(1).sample(self.names, len(self.names)):
            self.hub.on(Join(name), 0.0)
        return (time.process_time() - began) / len(self.names) * 1e6

    def round(self) -> float:
        """Return the same for each report of a round."""
        version = self.hub.progress.version
        tasks = [task for task in map(self.hub.poll_reply, self.names) if isinstance(task, Task)]
        random.Random(version).shuffle(tasks)
        reports = [answer(task, self.update) for task in tasks]
        began = time.process_time()
        for report in reports:
            self.hub.on(report, 1.0 + version)
        spent = time.process_time() - began
        assert self.hub.progress.version == version + 1
        return spent / len(reports) * 1e6


def answer(task: Task, update: BlobRef) -> Report:
    """Return a node's report after training."""
    return Report(task.node, task.id, task.version, 1.0, update, {"train/loss": 0.5}, 1.0)


def measured(members: int, rounds: int) -> dict[str, Any]:
    """Return a row of the table; rounds of both kinds alternate."""
    given = {"min_nodes": members, "quorum": members, "deadline_s": 1e6}
    plain, watchful = Job(Rounds(**given), members), Job(Watchful(**given), members)
    join, _ = plain.join(), watchful.join()
    found: Sequence[tuple[float, float]] = [(plain.round(), watchful.round()) for _ in range(rounds)]
    report, looked_at = (median(column) for column in zip(*found, strict=True))
    return {"members": members, "join_us": join, "report_us": report, "looked_at_us": looked_at}


def main() -> int:
    """Measure, and print."""
    parser = arguments(__doc__)
    parser.add_argument("--members", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = [measured(members, options.rounds) for members in options.members]
    show("the hub alone, processor time", rows, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
