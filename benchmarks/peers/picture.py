"""Draw how a round grows with nodes and with the size of the model, from the JSON of `run.py`, as SVG.

Runs in an environment that has matplotlib: `run.py --picture FILE` makes one. Several JSON files are drawn together.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

COLORS = {"floor": "#777777", "shoal": "#0a7d55", "nvflare": "#5a9e1b", "flower": "#d0861a"}
NODES, MEGABYTES = 2, 10.0
"""The values that stay the same while the other grows."""


def read_rows(files: list[Path]) -> list[dict[str, Any]]:
    """Return the rows of all files that have a figure."""
    rows = [row for file in files for row in json.loads(file.read_text())["rounds"]]
    return [row for row in rows if isinstance(row["round_s"], float)]


def draw_panel(axes: Any, rows: list[dict[str, Any]], grows: str, fixed: str, value: float) -> None:
    """Draw one line for each framework: seconds of a round by what grows."""
    for name, color in COLORS.items():
        points = sorted(
            (row[grows], row["round_s"]) for row in rows if row["framework"] == name and row[fixed] == value
        )
        if points:
            axes.loglog(*zip(*points, strict=True), "o-", color=color, label=name)
    ticks = sorted({row[grows] for row in rows if row[fixed] == value})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def main() -> None:
    """Read the files that are named, and write the last."""
    *files, target = map(Path, sys.argv[1:])
    rows = read_rows(files)
    mpl.rcParams.update({"svg.hashsalt": "shoal", "font.family": "sans-serif"})
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    draw_panel(left, rows, "nodes", "megabytes", MEGABYTES)
    draw_panel(right, rows, "megabytes", "nodes", NODES)
    left.set(title=f"{MEGABYTES:g} MB", xlabel="nodes", ylabel="seconds of a round")
    right.set(title=f"{NODES} nodes", xlabel="MB")
    right.legend()
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main()
