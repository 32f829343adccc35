"""Rounds and simulation of shoal beside other frameworks, each in an environment of its own, and beside the floor.

python benchmarks/peers/run.py --json peers.json

For each number of nodes and each size of model the frameworks run one after the other: a server, n client processes,
a client that adds one number to ten random float32 layers, on loopback. Printed: the median seconds of a round, the
first not counted; the processor seconds of a round of the server's processes and of one client's; the peak memory of
the server's processes; and their ratios to the floor, which moves, checks and sums the same bytes and does nothing
else. Then simulated clients per processor second. A framework that fails tells so in its row.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cell import TAG, end
from environments import PACKAGES, python_of
from harness import arguments, show
from table import FLOOR, simulation_table, table

HERE = Path(__file__).resolve().parent
FRAMEWORKS = (FLOOR, "shoal", "nvflare", "flower")
SIMULATION = "pfl"
START_S = 120


def read_options(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=(*FRAMEWORKS, SIMULATION), default=[*FRAMEWORKS, SIMULATION])
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 10])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.1, 10.0, 100.0])
    parser.add_argument("--rounds", type=int, default=20, help="that are measured")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of measuring a cell; then the rounds that are done suffice"
    )
    parser.add_argument("--gigabytes", type=float, default=8.0, help="leave out cells whose models are more in all")
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000], help="simulated ones")
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache" / "shoal" / "benchmarks")
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
            return {**named, **output_of(framework, words, options)}
        except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
            return {**named, "error": " ".join(str(error).split())[-300:]}


def output_of(framework: str, words: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Run `with_FRAMEWORK.py` in its environment, and return what it printed last."""
    command = [python_of(framework, options.environments), str(HERE / f"with_{framework}.py"), *words]
    tag = f"{os.getpid()}-{framework}"
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or framework not in PACKAGES}
    process = subprocess.Popen(
        command, env={**given, TAG: tag}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        text, wrong = process.communicate(timeout=2 * options.seconds + START_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not two rounds in {2 * options.seconds + START_S:.0f} s") from None
    finally:
        process.kill()
        end(tag)
    if process.returncode:
        raise RuntimeError(wrong.strip() or f"ended with {process.returncode}")
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return found


def simulated(options: argparse.Namespace) -> dict[tuple[int, str], float | str]:
    """Return clients per processor second by (clients, program): those of `simulation.py`, and pfl."""
    rates: dict[tuple[int, str], float | str] = {}
    with tempfile.TemporaryDirectory(prefix="shoal-benchmark-") as folder:
        file = Path(folder) / "simulation.json"
        asked = ["--clients", *map(str, options.clients), "--json", str(file)]
        command = [sys.executable, str(HERE.parent / "simulation.py"), *asked]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for rows in json.loads(file.read_text()).values():
            rates.update({(row["clients"], row["what"]): row["per_cpu_s"] for row in rows if row["what"] != "learners"})
    for clients in options.clients:
        try:
            rates[clients, SIMULATION] = output_of(SIMULATION, [str(clients)], options)["per_cpu_s"]
        except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
            rates[clients, SIMULATION] = " ".join(str(error).split())[-300:]
    return dict(sorted(rates.items()))


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
    if SIMULATION in options.only:
        show("simulated clients per processor second", simulation_table(simulated(options)), options.json)
    if options.picture is not None and options.json is not None:
        draw = [python_of("picture", options.environments), str(HERE / "picture.py")]
        subprocess.run([*draw, str(options.json), str(options.picture)], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
