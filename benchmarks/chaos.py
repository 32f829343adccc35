"""Several coordinators on one PostgreSQL under fire, and what became of it.

    python benchmarks/chaos.py --seconds 240 --replicas 3 --lease-s 1.5 --every-s 4

Owners are killed (kill -9) and begun again, or stopped for longer than their lease (SIGSTOP, then SIGCONT). Three nodes
work on two jobs, ask a coordinator after the other, and say a fifth of what they say twice. In the end the versions,
the reports that they count and the bytes of each model are compared with what the nodes were told, and with a formula.
It is the nightly test (`tests/coordinator/test_chaos.py`) with its figures; it needs what tests need.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.support.cluster import Fleet, Storm, doubled, nodes_of
from tests.support.coordinator import Server, until
from tests.support.history import violations
from tests.support.node import History
from tests.support.postgres import Cluster, rows

SIZES = {"inline": 10, "large": 66_000}
SUMS = {"inline": "fixed", "large": "float64"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--lease-s", type=float, default=1.5)
    parser.add_argument("--every-s", type=float, default=4.0, help="mean seconds between two faults of the owner")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-chaos-") as place:
        return report(args, Path(place), Cluster())


def report(args: argparse.Namespace, folder: Path, cluster: Cluster) -> int:
    url, history = cluster.database(), History()
    fleet = Fleet(lambda name, **more: Server(folder / name, **more), folder, url, args.replicas, args.lease_s)
    for job in SIZES:
        fleet.begin(job, nodes=3, rounds=100_000, aggregation_precision=SUMS[job])
    nodes = nodes_of(fleet, 3, SIZES, history)
    storm = Storm(fleet, args.seed)
    storm.run(args.seconds, args.every_s)
    for job in SIZES:
        fleet.post(f"/jobs/{job}/stop", {"when": "round", "why": "enough"})
    for node in nodes:
        node.finish()
    until("the jobs to end", lambda: all(fleet.job(job)["state"] == "stopped" for job in SIZES))
    wrong = [
        text for job, size in SIZES.items() for text in violations(fleet, history, job, size, nodes=3, sums=SUMS[job])
    ]
    wrong += [str(one) for one in doubled(url)]
    for name, value in storm.figures().items():
        print(f"{name:45} {value:g}")
    for job in SIZES:
        print(f"{'versions of ' + job:45} {fleet.job(job)['version']}")
    print(f"{'reports acknowledged':45} {sum(ack[-1] for ack in history.acks)}")
    print(f"{'reports in versions':45} {counted(url)}")
    print(f"{'requests said twice':45} {sum(node.doubled for node in nodes)}")
    print(f"{'lost, doubled or wrong':45} {len(wrong)}")
    for text in wrong:
        print(text)
    for member in fleet.members:
        member.kill()
        member.close()
    cluster.close()
    return 1 if wrong else 0


def counted(url: str) -> int:
    """Return the number of reports behind all versions but the first."""
    query = "SELECT sum(json_array_length(reports)) FROM versions WHERE number > 0"
    return int(rows(url, query)[0][0])


if __name__ == "__main__":
    sys.exit(main())
