"""A model in stages or in shards at several processes of this machine, beside all of it in one process.

    python benchmarks/pipeline.py                     2 processes, 2 to 16 micro-batches; one thread for each process
    python benchmarks/pipeline.py --processes 4 --steps 5

Prints the time of a step, bytes between processes, and memory by rank: weights, gradients and the optimizer's state.
For a pipeline also the fraction of time in which stages did not compute, beside that of the formula
(S - 1) / (M + S - 1) for S equal stages and M micro-batches. Idle time includes transfers and other programs, so each
process needs a core of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from shoal.core.algorithm.learner import TrainConfig
from shoal.learn import FullyShard, Pipeline, TensorParallel, TorchConfig, TorchLearner
from shoal.learn.pipeline.engine import bubble, idle
from shoal.learn.site.divided_module import Site

BATCH, WIDTH, LAYERS, CLASSES = 512, 512, 16, 10
MICROBATCHES = (2, 4, 8, 16)


def network() -> nn.Module:
    """Return a chain of equal layers."""
    layers = [one for _ in range(LAYERS) for one in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def momentum(parameters: Any, lr: float) -> torch.optim.Optimizer:
    """Return an optimizer with a state."""
    return torch.optim.SGD(parameters, lr, momentum=0.9)


def parallel_of(way: str, processes: int, microbatches: int) -> Pipeline | FullyShard | TensorParallel:
    """Return the division of the model."""
    if way == "shards":
        return FullyShard()
    if way == "tensors":
        return TensorParallel(tuple((str(first), str(first + 2)) for first in range(0, 2 * LAYERS, 4)))
    cuts = tuple(2 * LAYERS * stage // processes for stage in range(1, processes))  # not "auto": equal stages
    return Pipeline(cuts, microbatches)


def measured(rank: int, way: str, processes: int, microbatches: int, steps: int, folder: str) -> None:
    """Train at one rank; rank 0 writes the row of the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.randn(BATCH, WIDTH), torch.randint(CLASSES, (BATCH,))
    parallel = parallel_of(way, processes, microbatches)
    config = TorchConfig(parallel=parallel)
    learner = TorchLearner(network, (x, y), device="cpu", optimizer=momentum, config=config)
    if processes > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
        learner.use(site=Site())
    learner.init(0)
    learner.train(TrainConfig(steps=1, batch_size=BATCH, lr=0.01))  # the first one divides the model
    start = perf_counter()
    learner.train(TrainConfig(steps=steps, batch_size=BATCH, lr=0.01))
    row: dict[str, Any] = {"way": way, "processes": processes, "step_s": (perf_counter() - start) / steps}
    row |= {"bytes_per_step": 0.0, "memory_bytes": [3 * learner.layout.nbytes]}
    if isinstance(parallel, FullyShard | TensorParallel):
        row["bytes_per_step"] = sum(one.bytes_sent for one in parallel.reports)
        held = [(one.weight_bytes, one.gradient_bytes, one.optimizer_bytes) for one in parallel.reports]
        row["memory_bytes"] = [sum(one) for one in held]
    elif reports := parallel.reports:
        row |= {"microbatches": microbatches, "idle": idle(reports), "formula": bubble(processes, microbatches)}
        row["bytes_per_step"] = sum(one.bytes_sent for one in reports) / steps
        row["memory_bytes"] = [one.memory_bytes for one in reports]
    if rank == 0:
        Path(folder, "row.json").write_text(json.dumps(row))
    if processes > 1:
        dist.destroy_process_group()


def row_of(way: str, processes: int, microbatches: int, steps: int) -> dict[str, Any]:
    """Return the measurements of a run, whose ranks are new processes."""
    spawning = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            spawning.Process(target=measured, args=(rank, way, processes, microbatches, steps, folder))
            for rank in range(processes)
        ]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join()
        found: dict[str, Any] = json.loads(Path(folder, "row.json").read_text())
        return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each way to divide the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    print("| way | processes | micro-batches | s a step | idle | formula | MB sent a step | MB of memory by rank |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    pipelines = [("pipeline", given.processes, count) for count in MICROBATCHES if count >= given.processes]
    tensors = [] if WIDTH % given.processes else [("tensors", given.processes, 1)]  # which divide each layer equally
    for way, processes, count in [
        ("whole", 1, 1),
        *pipelines,
        ("shards", given.processes, 1),
        *tensors,
    ]:
        rows.append(one := row_of(way, processes, count, given.steps))
        memory = " + ".join(f"{nbytes / 1e6:.1f}" for nbytes in one["memory_bytes"])
        print(
            f"| {way} | {processes} | {one.get('microbatches', '')} | {one['step_s']:.3f} "
            f"| {_percent(one.get('idle'))} | {_percent(one.get('formula'))} "
            f"| {one['bytes_per_step'] / 1e6:.1f} | {memory} |",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{fraction:.0%}"


if __name__ == "__main__":
    main()
