"""DiLoCo on eight nodes beside AdamW that averages their gradients at every step: loss and bytes.

python benchmarks/diloco.py

The model is the GPT of shoal.learn.text on the text of its grammar. Synchronous: at each step every node sends the
gradient of a batch and receives the model, so a model's bytes up and down. DiLoCo: as many batches at each node, and an
outer step after `--steps` of them. `half`: differences as 16 bits in both directions. `triggered`: an outer step when
the variance of the models exceeds the median that DiLoCo had at its outer steps. `more steps`: twice as many batches
for as many outer steps. Printed: loss and bits per byte on the held-out text, what the loss is of the synchronous one,
bytes of all nodes, and how many times fewer they are. One core takes about ten minutes.
"""

from __future__ import annotations

import sys
from math import log
from statistics import median
from time import perf_counter
from typing import Any

import torch
from harness import arguments, show

import shoal
from shoal.jobs.spec import parse_job
from shoal.learn import text
from shoal.learn.text.text_learner import loss
from shoal.learn.training.torch_learner import TorchLearner

NODES, BATCH = 8, 8


def synchronous(learners: list[TorchLearner], steps: int, lr: float, seed: int) -> tuple[float, float]:
    """Return the loss of AdamW on the mean gradient, and the bytes of all nodes."""
    first = learners[0]
    model = first.init(seed)
    module, rng = first.module, torch.Generator().manual_seed(seed)
    optimizer = first.optimizer(list(module.parameters()), lr)
    for _ in range(steps):
        optimizer.zero_grad()
        for one in learners:
            inputs, targets = one.train_data.tensors
            chosen = torch.randint(len(inputs), (BATCH,), generator=rng)
            (loss(module(inputs[chosen]), targets[chosen]) / NODES).backward()
        optimizer.step()
    with torch.no_grad():
        losses = [float(loss(module(x), y)) for x, y in (one.test_data.tensors for one in learners)]
    return sum(losses) / NODES, 2.0 * NODES * steps * model.layout.nbytes


def diloco(learners: list[TorchLearner], seed: int, algorithm: dict[str, Any], **more: Any) -> shoal.Result:
    """Simulate a job of DiLoCo."""
    fields = {"name": "diloco", "batch_size": BATCH, **algorithm}
    nodes = {"min_nodes": NODES}
    job = {"name": "diloco", "seed": seed, "algorithm": fields, **more}
    job["schedule"] = nodes | more.get("schedule", {"name": "rounds", "quorum": NODES})
    return shoal.simulate(parse_job(job), learners)


def main() -> int:
    """Measure, and print."""
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=56, help="batches between two outer steps")
    parser.add_argument("--rounds", type=int, default=18, help="outer steps")
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--beta", type=float, default=0.9, help="momentum of the outer optimizer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--runs", nargs="+", default=["diloco", "half", "triggered", "more steps"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    learners = [text.learner(part, NODES, width=options.width) for part in range(NODES)]
    steps, rounds, rows = options.steps, options.rounds, list[dict[str, Any]]()
    begun, measured = perf_counter(), dict[str, tuple[float, float]]()

    def row(run: str, outer: int, batches: int, found: float, nbytes: float) -> None:
        nonlocal begun
        aim, most = measured.setdefault("AdamW", (found, nbytes))
        rows.append(
            {"run": run, "outer steps": outer, "batches of a node": batches, "loss": f"{found:.4f}"}
            | {"bits per byte": found / log(2), "of synchronous": f"{found / aim:.3f}"}
            | {"MB": nbytes / 1e6, "times fewer": most / nbytes, "seconds": perf_counter() - begun}
        )
        print(rows[-1], file=sys.stderr, flush=True)
        begun = perf_counter()

    def finished(run: str, result: shoal.Result) -> None:
        last, nbytes = result.versions[-1], sum(result.up_bytes.values()) + sum(result.down_bytes.values())
        batches = round(max(version.metrics.get("train/checks", 0) for version in result.versions) * made["steps"])
        row(run, last.number, batches, last.metrics["eval/loss"], nbytes)

    row("AdamW at each step", 0, steps * rounds, *synchronous(learners, steps * rounds, options.lr, options.seed))
    made = {"steps": steps, "lr": options.lr, "beta": options.beta}
    half = [{"name": "delta"}, {"name": "half"}]
    result = diloco(learners, options.seed, made, rounds=rounds)
    finished("diloco", result)
    theta = median(one.metrics["train/divergence"] for one in result.versions if "train/divergence" in one.metrics)
    if "half" in options.runs:
        finished("diloco, half", diloco(learners, options.seed, made, rounds=rounds, filters=half))
    if "triggered" in options.runs:
        made = made | {"steps": 10, "local_steps": steps * rounds}
        schedule = {"name": "variance", "theta": theta}
        finished("diloco, triggered, half", diloco(learners, options.seed, made, schedule=schedule, filters=half[1:]))
    if "more steps" in options.runs:
        made = {"steps": 2 * steps, "lr": options.lr, "beta": options.beta}
        finished("diloco, half, more steps", diloco(learners, options.seed, made, rounds=rounds, filters=half))
    show(f"DiLoCo, {NODES} nodes, {rounds} outer steps", rows, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
