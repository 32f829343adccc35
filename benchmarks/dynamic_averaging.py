"""Accuracy per byte of dynamic averaging, periodic averaging and other methods, on MNIST.

After Kamp et al., "Efficient Decentralized Deep Learning by Dynamic Model Averaging", ECML-PKDD 2018: m learners with
streams of their own, checks every b mini-batches, a sweep of Delta. Hub, nodes, schedules and filters are the
product's; clock and network are simulated (`shoal.simulate`), so all methods have the same data and the same time.

python benchmarks/dynamic_averaging.py --data FOLDER --svg docs/images/dynamic_averaging.svg

The model is 784-100-10 (79,510 weights). Bytes are those of every head and blob of all nodes; "over" is their ratio
to
the coded bytes of the weights that traveled; "MB to target" those until a version's model first had that accuracy on
2,000 test images (after a drift on their new names, so it is the cost of recovery). Accuracies are on test images:
"final" of the mean model at the end, "local" of the nodes' own models before that mean, "anytime" of the nodes' own
models over the run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import shoal
from shoal.core.algorithm.learner import TrainConfig, Trained
from shoal.core.errors import ShoalError
from shoal.jobs.spec import parse_job
from shoal.learn import mnist
from shoal.learn.data import datasets
from shoal.learn.data.stream import Permute, Stream
from shoal.learn.training.torch_learner import TorchLearner

MB = 1e6
POINTS = 20
"""Measurements of the nodes' own models in a run."""
JUDGES = 2000
"""Test images that they are measured on; the final model is measured on all."""
EIGHT = [{"name": "quantize", "bits": 8}]
COLORS = {"periodic": "#888780", "fedavg": "#ba7517", "nosync": "#444441", "dynamic": "#0f6e56", "fda": "#534ab7"}


@dataclass(frozen=True)
class Setting:
    """Settings that all methods share."""

    nodes: int
    steps: int
    batches: int
    lr: float
    drift_at: int
    seed: int
    target: float


@dataclass(frozen=True)
class Row:
    """Results of one method."""

    name: str
    final: float
    local: float
    anytime: float
    loss: float
    up_mb: float
    down_mb: float
    syncs: int
    to_target_mb: float | None
    over: float | None
    seconds: float

    @property
    def mb(self) -> float:
        return self.up_mb + self.down_mb


class Watched(TorchLearner):
    """A learner that measures itself `POINTS` times, and adds up its loss (per node, in mini-batches)."""

    every = 1
    total = 0.0

    def train(self, config: TrainConfig, **rest: Any) -> Trained:
        trained = super().train(config, **rest)
        end = config.batch_index + config.steps
        self.total += trained.metrics["train/loss"] * config.steps
        if end // self.every > config.batch_index // self.every:
            self.accuracies.append(self.evaluate()["eval/accuracy"])
        return trained

    @property
    def accuracies(self) -> list[float]:
        return self.__dict__.setdefault("_accuracies", [])


class Images:
    """MNIST, divided at random."""

    def __init__(self, folder: Path | None) -> None:
        images = datasets.load("mnist", folder)
        self.x, self.test_x = (_scaled(part) for part in (images.train_x, images.test_x))
        self.y, self.test_y = mnist.classes(images.train_y), mnist.classes(images.test_y)

    def learners(self, setting: Setting, count: int, every: int, drift_at: int) -> list[Watched]:
        """Return this many learners with an equal part each."""
        order = np.random.default_rng(setting.seed).permutation(len(self.y))
        drifts = (Permute(drift_at),) if drift_at else ()
        judged = self.test_x[:JUDGES], self.test_y[:JUDGES]
        found: list[Watched] = []
        for part in range(count):
            own = order[part::count][: len(order) // count]
            found.append(Watched(network, Stream((self.x[own], self.y[own]), drifts, seed=setting.seed), judged))
            found[-1].every = every
        return found

    def judge(self, drift_at: int) -> Watched:
        """Return a learner that evaluates models on test images as they are at the end, with their new names after a
        drift.
        """
        x, y = self.test_x[:JUDGES], self.test_y[:JUDGES]
        names = Permute(0).apply((x, y))[1] if drift_at else y
        return Watched(network, Stream((x, y)), (x, names))

    def accuracy(self, learner: TorchLearner, model: Any, drift_at: int) -> float:
        """Evaluate a model on all test images as they are at the end."""
        labels = Permute(0).apply((self.test_x, self.test_y))[1] if drift_at else self.test_y
        learner.load(model)
        with torch.no_grad():
            return float((learner.module(self.test_x).argmax(1) == labels).float().mean())


def _scaled(images: Any) -> torch.Tensor:
    return torch.from_numpy(images.reshape(len(images), -1) / np.float32(255))


def network() -> nn.Module:
    """Return the network 784-100-10: 79,510 weights."""
    return nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def methods(setting: Setting, quick: bool) -> dict[str, dict[str, Any]]:
    """Return tables of a job file by name. `every`: mini-batches between two checks, if not b."""
    periodic = {"algorithm": {"name": "periodic"}}
    long = 10 * setting.steps
    found: dict[str, dict[str, Any]] = {
        f"periodic b={setting.steps}": periodic | {"schedule": {"name": "periodic"}},
        f"periodic b={long}": periodic | {"schedule": {"name": "periodic"}, "every": long},
        f"periodic b={long} 8 bit": periodic | {"schedule": {"name": "periodic"}, "every": long, "filters": EIGHT},
        "nosync": periodic | {"schedule": {"name": "periodic", "fraction": 0.0}},
        "dynamic auto 8 bit": {"algorithm": {"name": "dynamic"}, "schedule": {"name": "divergence"}, "filters": EIGHT},
    }
    if not quick:
        found["continuous b=1"] = periodic | {"schedule": {"name": "periodic"}, "every": 1}
        for share in (0.3, 0.5, 0.7):
            found[f"fedavg C={share} b={5 * setting.steps}"] = periodic | {
                "schedule": {"name": "periodic", "fraction": share},
                "every": 5 * setting.steps,
            }
        for delta in (0.3, 1.0, 3.0, 10.0):
            drift = {"name": "divergence", "delta": delta}
            found[f"dynamic {delta:g}"] = {"algorithm": {"name": "dynamic"}, "schedule": drift}
        found["dynamic auto"] = {"algorithm": {"name": "dynamic"}, "schedule": {"name": "divergence"}}
        found["dynamic auto 4 bit"] = {
            "algorithm": {"name": "dynamic"},
            "schedule": {"name": "divergence"},
            "filters": [{"name": "quantize", "bits": 4}],
        }
        found["fda auto 8 bit"] = {"algorithm": {"name": "fda"}, "schedule": {"name": "variance"}, "filters": EIGHT}
    for table in found.values():
        table["schedule"]["min_nodes"] = setting.nodes
    return found


def measured(name: str, tables: dict[str, Any], setting: Setting, images: Images) -> Row:
    """Run one method."""
    steps = tables.get("every", setting.steps)
    values = {key: value for key, value in tables.items() if key != "every"}
    own = {"steps": steps, "batch_size": 10, "lr": setting.lr, "local_steps": setting.batches}
    values["algorithm"] = own | values["algorithm"]
    job = parse_job({"name": "bench", "seed": setting.seed, **values})
    learners = images.learners(setting, setting.nodes, setting.batches // POINTS, setting.drift_at)
    judge = images.judge(setting.drift_at)
    began = time.perf_counter()
    result = shoal.simulate(job, learners, held_out=judge)
    reports = sum(version.reports for version in result.versions[1:])
    bits = values.get("filters", [{}])[0].get("bits", 32)
    weights = sum(result.model[leaf].size for leaf in result.model)
    payload = weights * (2 * reports * bits / 8 + 4 * (1 + setting.nodes))  # the first model travels as it is
    up, down = sum(result.up_bytes.values()) / MB, sum(result.down_bytes.values()) / MB
    return Row(
        name,
        images.accuracy(judge, result.model, setting.drift_at),
        float(np.mean([learner.accuracies[-1] for learner in learners])),
        float(np.mean([learner.accuracies for learner in learners])),
        float(np.mean([learner.total for learner in learners])),
        up,
        down,
        len(result.versions) - 1,
        _to_target(result, setting.target),
        (up + down) * MB / payload,
        time.perf_counter() - began,
    )


def _to_target(result: shoal.Result, target: float) -> float | None:
    """Return the MB until the first version of at least that accuracy; None if there is none."""
    spent = 0
    for version in result.versions:
        spent += version.up_bytes + version.down_bytes
        if version.metrics.get("held_out/accuracy", 0.0) >= target:
            return spent / MB
    return None


def serial(setting: Setting, images: Images) -> Row:
    """Train one model on the mini-batches of all nodes, one after the other."""
    began = time.perf_counter()
    batches = setting.batches * setting.nodes
    learner = images.learners(setting, 1, batches // POINTS, setting.drift_at * setting.nodes)[0]
    learner.init(setting.seed)
    for start in range(0, batches, batches // POINTS):
        learner.train(TrainConfig(steps=batches // POINTS, batch_size=10, lr=setting.lr, seed=start, batch_index=start))
    final = images.accuracy(learner, learner.model(), setting.drift_at)
    anytime, loss = float(np.mean(learner.accuracies)), learner.total / setting.nodes
    took = time.perf_counter() - began
    return Row("serial", final, learner.accuracies[-1], anytime, loss, 0, 0, 0, None, None, took)


# -------------------------------------------------------------------------------------------------------------- output
def table(rows: Sequence[Row]) -> str:
    """Format as Markdown."""
    lines = [
        "| method | final | local | anytime | loss per node | up MB | down MB | syncs | MB to target | over |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        target = "" if row.to_target_mb is None else f"{row.to_target_mb:.1f}"
        over = "" if row.over is None else f"{row.over:.2f}"
        accuracies = f"{row.final:.4f} | {row.local:.4f} | {row.anytime:.4f}"
        traffic = f"{row.up_mb:.1f} | {row.down_mb:.1f} | {row.syncs}"
        lines.append(f"| {row.name} | {accuracies} | {row.loss:.0f} | {traffic} | {target} | {over} |")
    return "\n".join(lines)


WIDE = 330
"""Width of a drawing in pixels, without its names."""


def picture(rows: Sequence[Row], setting: Setting) -> str:
    """Draw cumulative loss and anytime accuracy over bytes (logarithmic) as SVG."""
    shown = [row for row in rows if row.mb]
    drift = f", new names from {setting.drift_at} on" if setting.drift_at else ""
    title = f"MNIST, m = {setting.nodes}, b = {setting.steps}, {setting.batches} mini-batches of 10 each{drift}"
    left = _panel(shown, 20, "cumulative training loss per node", lambda row: row.loss)
    right = _panel(shown, 550, "anytime accuracy of the nodes' own models", lambda row: row.anytime)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1080 420" font-family="sans-serif" font-size="11">\n'
        f'<rect width="1080" height="420" fill="#ffffff"/>\n<text x="20" y="20" font-size="13">{title}</text>\n'
        + "\n".join([*left, *right])
        + "\n</svg>\n"
    )


LABEL_Y, LABEL_STEP = 66.0, 15.0


def _places(wanted: Sequence[float]) -> list[float]:
    """Return the heights of labels in the same ascending order: near the wanted ones, and a line apart."""
    found: list[float] = []
    for height in wanted:
        found.append(max(height, found[-1] + LABEL_STEP if found else LABEL_Y))
    low = 366.0
    for index in reversed(range(len(found))):  # move up labels that were pushed out below
        found[index] = min(found[index], low)
        low = found[index] - LABEL_STEP
    return found


def _panel(rows: Sequence[Row], x0: float, title: str, value: Callable[[Row], float]) -> list[str]:
    low, high = math.floor(math.log10(min(row.mb for row in rows))), math.ceil(math.log10(max(row.mb for row in rows)))
    values = [value(row) for row in rows]
    least, span = min(values), (max(values) - min(values)) or 1.0

    def x(mb: float) -> float:
        return x0 + 50 + WIDE * (math.log10(mb) - low) / (high - low)

    def y(number: float) -> float:
        return 360 - 290 * (number - least) / span

    lines = [f'<text x="{x0 + 50}" y="45">{title}</text>']
    lines.append(f'<path d="M{x0 + 50},55 V370 H{x0 + 50 + WIDE}" fill="none" stroke="#888780"/>')
    powers = [10.0**power for power in range(low, high + 1)]
    lines += [f'<text x="{x(power):.0f}" y="386" text-anchor="middle">{power:g}</text>' for power in powers]
    lines.append(f'<text x="{x0 + 50 + WIDE / 2}" y="404" text-anchor="middle">MB, all nodes, both directions</text>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        number = least + share * span
        shown = f"{number:.0f}" if least > 2 else f"{number:.3f}"
        lines.append(f'<text x="{x0 + 45}" y="{y(number) + 4:.0f}" text-anchor="end">{shown}</text>')
    rows = sorted(rows, key=lambda row: y(value(row)))
    edge = x0 + 50 + WIDE + 14  # names stand in a column beside the drawing, each with a line to its point
    for row, height in zip(rows, _places([y(value(row)) for row in rows]), strict=True):
        color = COLORS.get(row.name.split()[0], "#888780")
        fill = color if "bit" in row.name else "#ffffff"
        line = f"M{x(row.mb):.1f},{y(value(row)):.1f} L{edge - 3:.1f},{height:.1f}"
        lines.append(f'<path d="{line}" stroke="{color}" stroke-width="0.5" opacity="0.6"/>')
        place = f'cx="{x(row.mb):.1f}" cy="{y(value(row)):.1f}"'
        lines.append(f'<circle {place} r="4" stroke="{color}" fill="{fill}" stroke-width="1.5"/>')
        lines.append(f'<text x="{edge}" y="{height + 3.5:.1f}" fill="{color}" font-size="10">{row.name}</text>')
    return lines


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the four IDX files (default: the cache)")
    parser.add_argument("--nodes", type=int, default=20, help="m")
    parser.add_argument("--steps", type=int, default=10, help="b")
    parser.add_argument("--batches", type=int, default=1000, help="mini-batches of each node")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--drift-at", type=int, default=0, help="mini-batch with which classes change their names")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", type=float, default=0.88, help="accuracy whose price in bytes is shown")
    parser.add_argument("--only", default="", help="only methods whose names have one of these words, with commas")
    parser.add_argument("--quick", action="store_true", help="the most important methods, fewer nodes: a minute")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    parser.add_argument("--svg", type=Path, help="draw the picture there")
    return parser.parse_args()


def main() -> int:
    """Run all methods and print the table."""
    options = parsed()
    torch.set_num_threads(1)
    nodes, batches = (
        (min(5, options.nodes), min(500, options.batches)) if options.quick else (options.nodes, options.batches)
    )
    setting = Setting(nodes, options.steps, batches, options.lr, options.drift_at, options.seed, options.target)
    try:
        images = Images(options.data)
        words = [word.strip() for word in options.only.split(",") if word.strip()]
        rows = [] if words else [serial(setting, images)]
        for name, tables in methods(setting, options.quick).items():
            if words and not any(word in name for word in words):
                continue
            rows.append(measured(name, tables, setting, images))
            print(f"{rows[-1].seconds:6.1f} s  {name}", file=sys.stderr, flush=True)
    except ShoalError as error:
        print(f"{error.message}\n{error.hint}", file=sys.stderr)
        return 1
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if options.svg:
        options.svg.write_text(picture(rows, setting))
    return 0


if __name__ == "__main__":
    sys.exit(main())
