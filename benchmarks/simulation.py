"""Simulated clients per processor second: `shoal.simulate`, beside a plain torch loop and stacked autograd.

python benchmarks/simulation.py --clients 100 1000 --rounds 3

Each client holds 32 of the digits and trains the user's own module (an MLP 64-128-10) by `TorchLearner` for one pass in
batches of 8, by federated averaging. Beside it, in the same run and on the same data: a plain loop that trains one
reused torch module after another and sums the weights, and autograd over weights that are stacked by hand for all
clients of a round. Neither sends, counts or checks anything: they are what a simulation could reach.

`one by one` is the same simulation of a module that cannot be stacked (it has a buffer), whose clients shoal trains
alone, to be compared with the plain loop.

With `--sizes unequal` the clients hold from 1 to some 200 of the digits, exponentially distributed with the same mean;
there is no stacked autograd by hand for these.

With `--workers 1 2`, learners are made for each task instead, in that number of processes, and seconds are counted by
the clock: `start_s` until the first model is there, `rounds_s` for all rounds after it; `core_s` is the processor time
of all processes. Turns alternate, and each is a row with the machine's load: other work disturbs these figures most.

Printed: clients and rounds per processor second, each the best of several turns, which alternate, and their ratios to
the plain loop. `learners` is the time to construct the learners, which is in no other row.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from harness import arguments, show
from torch import Tensor, nn

import shoal
from shoal.learn import TorchLearner
from shoal.learn.digits import digits

EXAMPLES, BATCH, LR = 32, 8, 0.1
CHUNK = 100
"""Clients whose weights are stacked at once."""


def network() -> nn.Module:
    """Return the user's module: 9,610 parameters."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


class Unstacked(nn.Module):
    """The same module with a buffer, so that its clients are trained one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes' scores."""
        scores: Tensor = self.layers(x)
        return scores


data_set = lru_cache(digits)


def part(client: int, size: int = EXAMPLES) -> tuple[Tensor, Tensor]:
    """Return a client's examples: some of the digits, drawn by the client's number."""
    x, y = data_set()
    chosen = torch.randint(len(y), (size,), generator=torch.Generator().manual_seed(client))
    return x[chosen], y[chosen]


def parts(clients: int, *, equal: bool) -> list[tuple[Tensor, Tensor]]:
    """Return the examples of all clients."""
    sizes = torch.empty(clients).exponential_(1 / EXAMPLES, generator=torch.Generator().manual_seed(0)).ceil().long()
    return [part(client, EXAMPLES if equal else size) for client, size in enumerate(sizes.tolist())]


def learner(model: Callable[[], nn.Module], client: int) -> TorchLearner:
    """Return a client's learner."""
    return TorchLearner(model, part(client), device="cpu")


def simulated(learners: Any, rounds: int, **options: Any) -> None:
    """Simulate the job by shoal."""
    job = shoal.JobSpec(name="digits", rounds=rounds, algorithm={"name": "fedavg", "batch_size": BATCH, "lr": LR})
    shoal.simulate(job, learners, **{"progress": False, **options})


def looped(data: list[tuple[Tensor, Tensor]], rounds: int) -> None:
    """Train the clients one after the other, in one module."""
    module = network()
    model = [p.detach().clone() for p in module.parameters()]
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    for _ in range(rounds):
        total = [torch.zeros_like(p) for p in model]
        for x, y in data:
            with torch.no_grad():
                for p, value in zip(module.parameters(), model, strict=True):
                    p.copy_(value)
            order = torch.randperm(len(y))
            for start in range(0, len(y), BATCH):
                chosen = order[start : start + BATCH]
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(x[chosen]), y[chosen]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            torch._foreach_add_(total, [p.detach() for p in module.parameters()], alpha=len(y))
        model = [p / sum(len(y) for _, y in data) for p in total]


def stacked(data: list[tuple[Tensor, Tensor]], rounds: int) -> None:
    """Train the clients at once, by batched products of their stacked weights under autograd."""
    x, y = (torch.stack(tensors) for tensors in zip(*data, strict=True))
    model = [p.detach().clone() for p in network().parameters()]
    for _ in range(rounds):
        total = [torch.zeros_like(p) for p in model]
        for first in range(0, len(data), CHUNK):
            own = slice(first, first + CHUNK)
            _stacked_chunk(model, total, x[own], y[own])
        model = [p / len(data) for p in total]


def _stacked_chunk(model: list[Tensor], total: list[Tensor], x: Tensor, y: Tensor) -> None:
    count = len(x)
    weights = [p.expand(count, *p.shape).clone().requires_grad_() for p in model]
    clients = torch.arange(count).unsqueeze(1)
    order = torch.rand(count, EXAMPLES).argsort(1)
    for start in range(0, EXAMPLES, BATCH):
        chosen = order[:, start : start + BATCH]
        w1, b1, w2, b2 = weights
        hidden = torch.baddbmm(b1.unsqueeze(1), x[clients, chosen], w1.transpose(1, 2)).relu()
        output = torch.baddbmm(b2.unsqueeze(1), hidden, w2.transpose(1, 2))
        loss = nn.functional.cross_entropy(output.flatten(0, 1), y[clients, chosen].flatten(), reduction="sum") / BATCH
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            torch._foreach_add_(weights, gradients, alpha=-LR)
    for added, p in zip(total, weights, strict=True):
        added.add_(p.detach().sum(0))


def cpu_of(work: Callable[[], object]) -> float:
    """Return the processor seconds of a call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(clients: int, rounds: int, times: int, sizes: str) -> list[dict[str, Any]]:
    """Return the rows for this number of clients."""
    data = parts(clients, equal=sizes == "equal")
    learners: list[TorchLearner] = []
    made_s = cpu_of(lambda: learners.extend(TorchLearner(network, one, device="cpu") for one in data))
    unstacked = [TorchLearner(Unstacked, one, device="cpu") for one in data]
    ways: dict[str, Callable[[], object]] = {
        "shoal.simulate": lambda: simulated(learners, rounds),
        "shoal.simulate, one by one": lambda: simulated(unstacked, rounds),
        "plain torch loop": lambda: looped(data, rounds),
    }
    if sizes == "equal":
        ways["stacked autograd"] = lambda: stacked(data, rounds)
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(times):
        for name, work in ways.items():
            best[name] = min(best[name], cpu_of(work))
    rates = {name: clients * rounds / seconds for name, seconds in best.items()}
    rows = [
        {
            "clients": clients,
            "sizes": sizes,
            "what": name,
            "per_cpu_s": rate,
            "of_the_loop": rate / rates["plain torch loop"],
        }
        for name, rate in rates.items()
    ]
    made = clients / made_s
    return [
        *rows,
        {"clients": clients, "sizes": sizes, "what": "learners", "per_cpu_s": made, "of_the_loop": float("nan")},
    ]


def in_processes(model: Callable[[], nn.Module], clients: int, rounds: int, workers: int) -> dict[str, Any]:
    """Return the row of a simulation in `workers` processes."""
    began, used, first = time.monotonic(), sum(os.times()[:4]), 0.0

    def show(share: float, _: str) -> None:
        nonlocal first
        if share and not first:
            first = time.monotonic() - began

    simulated(partial(learner, model), rounds, nodes=clients, workers=workers, progress=show)
    took, core_s = time.monotonic() - began, sum(os.times()[:4]) - used
    seconds = {"start_s": first, "rounds_s": took - first, "core_s": core_s, "load": os.getloadavg()[0]}
    return {"clients": clients, "what": model.__name__, "workers": workers, **seconds}


def main() -> int:
    """Measure, and print."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=3, help="turns of each way")
    parser.add_argument("--sizes", choices=["equal", "unequal"], nargs="+", default=["equal", "unequal"])
    parser.add_argument("--workers", type=int, nargs="+", help="numbers of processes: measure these alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.workers:
        turns = [(model, n) for model in (network, Unstacked) for n in options.clients] * options.times
        rows = [in_processes(model, n, options.rounds, w) for model, n in turns for w in options.workers]
        show("simulation in several processes", rows, options.json)
        return 0
    rows = [
        row
        for clients in options.clients
        for sizes in options.sizes
        for row in measure(clients, options.rounds, options.times, sizes)
    ]
    show("simulated clients per processor second", rows, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
