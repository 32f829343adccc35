"""A training step of `TorchLearner` beside a bare loop of PyTorch with the same model, batch, optimizer and data.

    python benchmarks/step.py                       on the CPU, one thread
    python benchmarks/step.py --device cuda         on a card
    python benchmarks/step.py --device cuda --nodes 3 --only cnn

Runs of both alternate. Each is one task, so what a task costs beside its steps is in it; the ratio is the median over
pairs of runs. On the CPU the time is that of the process, which other programs change by a tenth; on a card it is the
clock's. The number of torch's operations does not depend on other programs. `--nodes N` trains with N learners at once,
each in a process of its own, and prints their joint rate.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from shoal.core.algorithm.learner import TrainConfig
from shoal.learn import TorchConfig, TorchLearner
from shoal.learn.training.descent import OptimizerOf

EXAMPLES, CLASSES, LR, SEED = 1024, 10, 0.01, 1
VOCABULARY, LENGTH = 256, 64
START_S = 600.0
"""Longest wait in seconds for the other processes."""


class Transformer(nn.Module):
    """A small transformer over bytes, of the width and the number of layers given."""

    def __init__(self, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.zeros(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.layers(self.tokens(x) + self.positions))
        return output.transpose(1, 2)


def tiny() -> nn.Module:
    """Return a network whose steps are almost nothing but Python."""
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def mlp() -> nn.Module:
    """Return a network of 1.9 million parameters."""
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, CLASSES))


def cnn() -> nn.Module:
    """Return a network for pictures of 32 x 32 pixels."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, CLASSES))


def momentum(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr, momentum=0.9)


@dataclass(frozen=True)
class Case:
    """A model with its data, its optimizer, and the steps of one run."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    """The shape of one input; () for a text."""
    optimizer: OptimizerOf
    batch: int
    steps: int

    def data(self) -> tuple[Tensor, Tensor]:
        """Return inputs and targets."""
        drawn = torch.Generator().manual_seed(SEED)
        if not self.shape:
            text = torch.randint(VOCABULARY, (EXAMPLES, LENGTH + 1), generator=drawn)
            return text[:, :-1], text[:, 1:]
        labels = torch.randint(CLASSES, (EXAMPLES,), generator=drawn)
        return torch.randn(EXAMPLES, *self.shape, generator=drawn), labels

    def learner(self, device: str, precision: Any) -> TorchLearner:
        """Return a learner with weights."""
        config = TorchConfig(precision=precision)
        made = TorchLearner(self.model, self.data(), device=device, optimizer=self.optimizer, config=config)
        made.init(SEED)
        return made

    def task(self, steps: int) -> TrainConfig:
        """Return the config of a run."""
        return TrainConfig(steps=steps, batch_size=self.batch, lr=LR, seed=SEED)


CASES = {
    "tiny": Case(tiny, (8,), torch.optim.AdamW, 64, 200),
    "mlp": Case(mlp, (784,), torch.optim.SGD, 128, 12),
    "cnn": Case(cnn, (3, 32, 32), momentum, 64, 4),
    "transformer": Case(Transformer, (), torch.optim.AdamW, 16, 4),
}


def bare_loop(case: Case, device: torch.device, precision: str) -> Callable[[int], float]:
    """Return a function that trains for a number of steps in a bare loop, and returns the mean loss."""
    module = case.model().to(device)
    x, y = (one.to(device) for one in case.data())

    def train(steps: int) -> float:
        optimizer, done, total = case.optimizer(module.parameters(), LR), 0, torch.zeros((), device=device)
        module.train()
        while done < steps:
            order = torch.randperm(EXAMPLES).to(device)
            for chosen in order.split(case.batch)[: steps - done]:
                optimizer.zero_grad(set_to_none=True)
                with torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext():
                    loss = nn.functional.cross_entropy(module(x[chosen]), y[chosen])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += loss.detach()
                done += 1
        return float(total) / steps

    return train


def operations(way: Callable[[int], object], steps: int) -> float:
    """Return the number of torch's operations of a step, those inside of others included."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        way(steps)
    return sum(one.count for one in found.key_averages()) / steps


def row_of(name: str, precision: str, device: torch.device, runs: int) -> dict[str, Any]:
    """Return the seconds of a step in both ways, and the ratios of pairs of runs."""
    case = CASES[name]
    learner, bare = case.learner(str(device), precision), bare_loop(case, device, precision)
    ways: list[Callable[[int], object]] = [bare, lambda steps: learner.train(case.task(steps))]
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    seconds: list[list[float]] = [[], []]
    for way in ways:
        way(max(3, case.steps // 2))
    for number in range(runs):
        for place in (0, 1) if number % 2 == 0 else (1, 0):
            start = clock()
            ways[place](case.steps)  # both end with the mean loss, for which they wait
            seconds[place].append((clock() - start) / case.steps)
    ratios = sorted(ours / theirs for theirs, ours in zip(*seconds, strict=True))
    return {
        "model": name,
        "precision": precision,
        "bare_s": statistics.median(seconds[0]),
        "learner_s": statistics.median(seconds[1]),
        "ratio": statistics.median(ratios),
        "least": ratios[0],
        "most": ratios[-1],
        "operations": [operations(way, case.steps) for way in ways],
    }


def train_beside(name: str, device: str, threads: int, steps: int, started: Any, rates: Any) -> None:
    """Train in a process of its own, when all are ready, and tell start and end."""
    torch.set_num_threads(threads)
    case = CASES[name]
    learner = case.learner(device, "float32")
    learner.train(case.task(3))
    try:
        started.wait(START_S)
    except BrokenBarrierError:
        return
    start = time.time()
    learner.train(case.task(steps))
    rates.put((start, time.time()))


def joint_rate(name: str, device: str, threads: int, nodes: int, steps: int) -> float:
    """Return the steps per second of all learners together."""
    spawning = multiprocessing.get_context("spawn")
    started, rates = spawning.Barrier(nodes), spawning.Queue()
    given = (name, device, threads, steps, started, rates)
    processes = [spawning.Process(target=train_beside, args=given) for _ in range(nodes)]
    for one in processes:
        one.start()
    spans = [rates.get(timeout=START_S) for _ in processes]
    for one in processes:
        one.join()
    return nodes * steps / (max(end for _, end in spans) - min(start for start, _ in spans))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each model and precision, or for each number of nodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--nodes", type=int, default=0, help="learners at once on the device")
    parser.add_argument("--only", choices=CASES, nargs="*", default=list(CASES))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    rows: list[dict[str, Any]] = []
    if given.nodes:
        print("| model | learners | steps/s of all | beside one |\n|---|---|---|---|")
        for name in given.only:
            one, all_ = (
                joint_rate(name, given.device, given.threads, nodes, 4 * CASES[name].steps)
                for nodes in (1, given.nodes)
            )
            rows.append({"model": name, "nodes": given.nodes, "one": one, "all": all_})
            print(
                f"| {name} | 1 | {one:.1f} | |\n| {name} | {given.nodes} | {all_:.1f} | {all_ / one:.2f} |", flush=True
            )
    else:
        print("| model | precision | bare loop, ms a step | `TorchLearner`, ms a step | ratio (range) | operations |")
        print("|---|---|---|---|---|---|")
        for name in given.only:
            for precision in ("float32", "bf16"):
                rows.append(row := row_of(name, precision, torch.device(given.device), given.runs))
                bare, ours = row["operations"]
                print(
                    f"| {name} | {precision} | {1e3 * row['bare_s']:.2f} | {1e3 * row['learner_s']:.2f} "
                    f"| {row['ratio']:.3f} ({row['least']:.3f}–{row['most']:.3f}) | {bare:.0f} / {ours:.0f} |",
                    flush=True,
                )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
