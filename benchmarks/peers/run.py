"""Rounds of shoal beside other frameworks, each in an environment of its own, and beside the floor.

python benchmarks/peers/run.py --json peers.json

For each number of nodes and each size of model the frameworks run one after the other: a server, n client processes,
a client that adds one number to ten random float32 layers, on loopback. Printed: the median seconds of a round, the
first not counted; the processor seconds of a round of the server's processes and of one client's; the peak memory of
the server's processes; and their ratios to the floor, which moves, checks and sums the same bytes and does nothing
else. A framework that fails tells so in its row. `benchmarks/simulation.py --beside pfl` compares simulations.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environments import CACHE, FAILURES, error_line, output_of, python_of
from harness import arguments, show
from table import FLOOR, table

HERE = Path(__file__).resolve().parent
FRAMEWORKS = (FLOOR, "shoal", "nvflare", "flower")
START_S = 120


def read_options(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=FRAMEWORKS, default=FRAMEWORKS)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 10])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.1, 10.0, 100.0])
    parser.add_argument("--rounds", type=int, default=20, help="that are measured")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of measuring a cell; then the rounds that are done suffice"
    )
    parser.add_argument("--gigabytes", type=float, default=8.0, help="leave out cells whose models are more in all")
    parser.add_argument("--environments", type=Path, default=CACHE)
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the growth there, as SVG")
    return parser.parse_args(given)


def cells(options: argparse.Namespace) -> list[tuple[int, float]]:
    """Return (nodes, megabytes), without those that a machine of this memory could not hold."""
    pairs = [(nodes, size) for size in options.megabytes for nodes in options.nodes]
    return [(nodes, size) for nodes, size in pairs if nodes * size <= 1000 * options.gigabytes]


def rounds_of(framework: str, nodes: int, megabytes: float, options: argparse.Namespace) -> dict[str, Any]:
    """Run one framework once; its figures, or its error."""
    named = {"framework": framework, "nodes": nodes, "megabytes": megabytes}
    with tempfile.TemporaryDirectory(prefix="shoal-benchmark-", ignore_cleanup_errors=True) as folder:
        given = {"nodes": nodes, "megabytes": megabytes, "rounds": options.rounds, "seconds": options.seconds}
        words = [f"--{name}={value}" for name, value in {**given, "folder": folder}.items()]
        try:
            limit_s = 2 * options.seconds + START_S
            return {
                **named,
                **output_of(framework, HERE / f"with_{framework}.py", words, options.environments, limit_s),
            }
        except FAILURES as error:
            return {**named, "error": error_line(error)}


def main() -> int:
    """Measure, and print."""
    options = read_options()
    results = []
    for nodes, megabytes in cells(options):
        for framework in FRAMEWORKS:
            if framework in options.only:
                results.append(rounds_of(framework, nodes, megabytes, options))
                print(json.dumps(results[-1]), file=sys.stderr)
    if results:
        show("rounds", table(results), options.json)
    if options.picture is not None and options.json is not None:
        draw = [python_of("picture", options.environments), str(HERE / "picture.py")]
        subprocess.run([*draw, str(options.json), str(options.picture)], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
