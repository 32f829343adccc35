"""Simulated clients per processor second: `shoal.simulate`, beside other frameworks, a plain torch loop and stacked
autograd.

python benchmarks/simulation.py --clients 100 1000 --beside pfl flower

Each client holds 32 examples and trains the user's own module (`simulations/simulated_work.py`: an MLP, a CNN,
a transformer) by `TorchLearner` for one pass in batches of 8, by federated averaging. Beside it, in the same run:

    one by one          learners of a class of their own, which shoal trains one by one, to be compared with the plain
                        loop
    plain torch loop    one reused torch module after another, and a sum of the weights
    stacked autograd    `torch.func` over the weights of 100 clients: `vmap` of `grad` of `functional_call`
    batched products    autograd over products of stacked weights, written by hand for the MLP
    pfl, flower         with `--beside`: their simulations, each installed in an environment of its own

`--kinds momentum adam`, or others of `KINDS`, measures these kinds of training instead, at once and one by one.

The loop and the stacks neither send, count nor check anything: they are what a simulation could reach. pfl and Flower
send nothing either; shoal also counts the bytes of each message, checks each update and averages the training loss.
No way evaluates. The best round of each way counts, without the start of a job and, for shoal, the last evaluation.

With `--sizes unequal` the clients hold from 1 to some 200 examples, exponentially distributed with the same mean; there
are no stacks for these.

With `--workers 1 2`, learners are made for each task instead, in that number of processes, and seconds are counted by
the clock: `start_s` until the first model is there, `rounds_s` for all rounds after it; `core_s` is the processor time
of all processes. Turns alternate, and each is a row with the machine's load: other work disturbs these figures most.

Printed: clients per processor second in the best round of several turns, which alternate, and their ratios to the plain
loop, to stacked autograd and to pfl. `learners` is the time to construct the learners, which is in no other
row.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from harness import arguments, show
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import shoal
from shoal.learn import TorchLearner
from shoal.results.callbacks import RoundCallback

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "simulations"))

from environments import CACHE, FAILURES, error_line, output_of
from simulated_work import BATCH, CLASSES, EXAMPLES, LR, NETWORKS, PIXELS, examples

HERE = Path(__file__).resolve().parent
CHUNK = 100
"""Clients whose weights are stacked at once."""
LIMIT_S = 900.0
"""Seconds that another framework may take for one number of clients."""
BESIDE = {"pfl": "pfl", "flower": "flower_simulation"}
LOOP, STACKED, LEARNERS, NONE = "plain torch loop", "stacked autograd", "learners", "-"

Data = list[tuple[Tensor, Tensor]]
Mark = Callable[[], None]
"""To be called before the first round and after each one."""


class Unstacked(TorchLearner):
    """A learner that is trained one by one, because it might train in a way of its own."""


def parts(clients: int, *, equal: bool) -> Data:
    """Return the examples of all clients."""
    sizes = torch.empty(clients).exponential_(1 / EXAMPLES, generator=torch.Generator().manual_seed(0)).ceil().long()
    return [examples(client, EXAMPLES if equal else size) for client, size in enumerate(sizes.tolist())]


def normalized() -> nn.Module:
    """Return the MLP with BatchNorm."""
    return nn.Sequential(nn.Linear(PIXELS, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, CLASSES))


def dropping() -> nn.Module:
    """Return the MLP with dropout."""
    return nn.Sequential(nn.Linear(PIXELS, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, CLASSES))


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("fedavg", {}),
    "momentum": ("fedavg", {"optimizer": partial(torch.optim.SGD, momentum=0.9)}),
    "adam": ("fedavg", {"optimizer": torch.optim.Adam}),
    "prox": ("fedprox", {}),
    "scaffold": ("scaffold", {}),
    "batchnorm": ("fedavg", {"model": normalized}),
    "dropout": ("fedavg", {"model": dropping}),
}
"""Algorithms and options of the learners."""


def learner(kind: type[TorchLearner], client: int) -> TorchLearner:
    """Return a client's learner of the MLP."""
    return kind(NETWORKS["mlp"], examples(client), device="cpu")


def simulated(learners: Any, rounds: int, algorithm: str = "fedavg", **options: Any) -> None:
    """Simulate the job by shoal."""
    job = shoal.JobSpec(name="noise", rounds=rounds, algorithm={"name": algorithm, "batch_size": BATCH, "lr": LR})
    shoal.simulate(job, learners, **{"progress": False, **options})


class Marking(RoundCallback):
    """A callback that marks the rounds."""

    def __init__(self, mark: Mark) -> None:
        self._mark = mark

    def round_started(self, number: int, model: Any) -> None:
        if number == 1:
            self._mark()

    def round_ended(self, number: int, model: Any, metrics: Any) -> None:
        self._mark()


def marked(learners: Sequence[TorchLearner], rounds: int, algorithm: str = "fedavg") -> Callable[[Mark], object]:
    """Return the simulation of the job, with its rounds marked."""
    return lambda mark: simulated(learners, rounds, algorithm, callbacks=[Marking(mark)])


def looped(network: Callable[[], nn.Module], data: Data, rounds: int, mark: Mark) -> None:
    """Train the clients one after the other, in one module."""
    module = network()
    model = [p.detach().clone() for p in module.parameters()]
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    mark()
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
        mark()


Gradients = Callable[[list[Tensor], Tensor, Tensor], list[Tensor]]
"""From the weights of some clients and a batch of each to the gradients, all stacked."""


def stacked(network: Callable[[], nn.Module], gradients: Gradients, data: Data, rounds: int, mark: Mark) -> None:
    """Train the clients of a chunk at once."""
    x, y = (torch.stack(tensors) for tensors in zip(*data, strict=True))
    model = [p.detach().clone() for p in network().parameters()]
    mark()
    for _ in range(rounds):
        total = [torch.zeros_like(p) for p in model]
        for first in range(0, len(data), CHUNK):
            own = slice(first, first + CHUNK)
            for added, p in zip(total, _trained_chunk(model, gradients, x[own], y[own]), strict=True):
                added.add_(p.detach().sum(0))
        model = [p / len(data) for p in total]
        mark()


def _trained_chunk(model: list[Tensor], gradients: Gradients, x: Tensor, y: Tensor) -> list[Tensor]:
    count = len(x)
    weights = [p.expand(count, *p.shape).clone() for p in model]
    clients = torch.arange(count).unsqueeze(1)
    order = torch.rand(count, EXAMPLES).argsort(1)
    for start in range(0, EXAMPLES, BATCH):
        chosen = order[:, start : start + BATCH]
        torch._foreach_add_(weights, gradients(weights, x[clients, chosen], y[clients, chosen]), alpha=-LR)
    return weights


def functional_gradients(network: Callable[[], nn.Module]) -> Gradients:
    """Return the gradients of any network by `torch.func`."""
    module = network()
    names = [name for name, _ in module.named_parameters()]

    def loss(weights: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(module, dict(zip(names, weights, strict=True)), (x,)), y)

    found: Gradients = vmap(grad(loss))
    return found


def batched_gradients(weights: list[Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the gradients of the MLP by batched products."""
    for weight in weights:
        weight.requires_grad_()
    w1, b1, w2, b2 = weights
    hidden = torch.baddbmm(b1.unsqueeze(1), x, w1.transpose(1, 2)).relu()
    output = torch.baddbmm(b2.unsqueeze(1), hidden, w2.transpose(1, 2))
    loss = nn.functional.cross_entropy(output.flatten(0, 1), y.flatten(), reduction="sum") / BATCH
    found = list(torch.autograd.grad(loss, weights))
    for weight in weights:
        weight.requires_grad_(False)
    return found


def cpu_of(work: Callable[[], object]) -> float:
    """Return the processor seconds of a call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def best_round(work: Callable[[Mark], object]) -> float:
    """Return the processor seconds of the best round."""
    at: list[float] = []
    work(lambda: at.append(time.process_time()))
    return min(later - earlier for earlier, later in pairwise(at))


def ways_of(model: str, learners: list[TorchLearner], data: Data, rounds: int) -> dict[str, Callable[[Mark], object]]:
    """Return what is measured in this process, by name. `data` of equal sizes are stacked, too."""
    network = NETWORKS[model]
    alone = [Unstacked(network, one, device="cpu") for one in data]
    ways: dict[str, Callable[[Mark], object]] = {
        "shoal.simulate": marked(learners, rounds),
        "shoal.simulate, one by one": marked(alone, rounds),
        LOOP: lambda mark: looped(network, data, rounds, mark),
    }
    if len({len(y) for _, y in data}) == 1:
        ways[STACKED] = lambda mark: stacked(network, functional_gradients(network), data, rounds, mark)
        if model == "mlp":
            ways["batched products"] = lambda mark: stacked(network, batched_gradients, data, rounds, mark)
    return ways


def measure(model: str, clients: int, sizes: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows for this network and number of clients."""
    data = parts(clients, equal=sizes == "equal")
    learners: list[TorchLearner] = []
    made_s = cpu_of(lambda: learners.extend(TorchLearner(NETWORKS[model], one, device="cpu") for one in data))
    ways = ways_of(model, learners, data, options.rounds)
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(options.times):
        for name, work in ways.items():
            best[name] = min(best[name], best_round(work))
    rates: dict[str, float | str] = {name: clients / seconds for name, seconds in best.items()}
    for name in options.beside if sizes == "equal" else ():
        try:
            program, words = HERE / "simulations" / f"with_{name}.py", [model, str(clients)]
            rates[name] = output_of(BESIDE[name], program, words, options.environments, LIMIT_S)["per_cpu_s"]
        except FAILURES as error:
            rates[name] = error_line(error)
    rates[LEARNERS] = clients / made_s
    return table(model, clients, sizes, rates)


def table(model: str, clients: int, sizes: str, rates: Mapping[str, float | str]) -> list[dict[str, Any]]:
    """Return a row for each rate, with its ratios; an error stands in place of its rate."""

    def ratio(name: str, other: str) -> float | str:
        one, two = rates[name], rates.get(other, NONE)
        return NONE if name == LEARNERS or isinstance(one, str) or isinstance(two, str) else one / two

    return [
        {
            "model": model,
            "clients": clients,
            "sizes": sizes,
            "what": name,
            "per_cpu_s": rate,
            "times_loop": ratio(name, LOOP),
            "times_stacked": ratio(name, STACKED),
            "times_pfl": ratio(name, "pfl"),
        }
        for name, rate in rates.items()
    ]


def measure_kind(name: str, clients: int, rounds: int, times: int) -> dict[str, Any]:
    """Return the row of another kind of training: clients per processor second, at once and one by one."""
    algorithm, more = KINDS[name]
    data = parts(clients, equal=True)
    best: dict[type[TorchLearner], float] = {}
    for made_by in (TorchLearner, Unstacked) * times:
        learners = [made_by(train=one, device="cpu", **{"model": NETWORKS["mlp"], **more}) for one in data]
        seconds = best_round(marked(learners, rounds, algorithm))
        best[made_by] = min(best.get(made_by, seconds), seconds)
    at_once, alone = (clients / best[made_by] for made_by in (TorchLearner, Unstacked))
    return {"clients": clients, "kind": name, "at_once": at_once, "one_by_one": alone, "gain": at_once / alone}


def in_processes(kind: type[TorchLearner], clients: int, rounds: int, workers: int) -> dict[str, Any]:
    """Return the row of a simulation in `workers` processes."""
    began, used, first = time.monotonic(), sum(os.times()[:4]), 0.0

    def show_progress(share: float, _: str) -> None:
        nonlocal first
        if share and not first:
            first = time.monotonic() - began

    simulated(partial(learner, kind), rounds, nodes=clients, workers=workers, progress=show_progress)
    took, core_s = time.monotonic() - began, sum(os.times()[:4]) - used
    seconds = {"start_s": first, "rounds_s": took - first, "core_s": core_s, "load": os.getloadavg()[0]}
    return {"clients": clients, "what": kind.__name__, "workers": workers, **seconds}


def main() -> int:
    """Measure, and print."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--models", choices=[*NETWORKS], nargs="+", default=[*NETWORKS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=3, help="turns of each way")
    parser.add_argument("--sizes", choices=["equal", "unequal"], nargs="+", default=["equal", "unequal"])
    parser.add_argument("--beside", choices=[*BESIDE], nargs="+", default=[], help="frameworks to install and measure")
    parser.add_argument("--environments", type=Path, default=CACHE, help="folder of their environments")
    parser.add_argument("--workers", type=int, nargs="+", help="numbers of processes: measure these alone")
    parser.add_argument("--kinds", choices=list(KINDS), nargs="+", help="kinds of training: measure these alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.workers:
        turns = [(kind, n) for kind in (TorchLearner, Unstacked) for n in options.clients] * options.times
        rows = [in_processes(kind, n, options.rounds, w) for kind, n in turns for w in options.workers]
        show("simulation in several processes", rows, options.json)
        return 0
    if options.kinds:
        rows = [measure_kind(kind, n, options.rounds, options.times) for n in options.clients for kind in options.kinds]
        show("simulated clients per processor second", rows, options.json)
        return 0
    rows = [
        row
        for model in options.models
        for clients in options.clients
        for sizes in options.sizes
        for row in measure(model, clients, sizes, options)
    ]
    show("simulated clients per processor second", rows, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
