"""Trainings that the ranks of a site do together, and a single process does alone, for comparison.

`results(folder, module)` starts the ranks, each of which runs the cases of a module.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import Cancelled, LearnerFailed
from shoal.learn import TorchConfig, TorchLearner
from shoal.learn.data.stream import Stream
from shoal.learn.site.divided_module import Site

Found = dict[str, Any]
Case = Callable[[Site | None], Found]

DRAWN = torch.Generator().manual_seed(5)
X = torch.randn(98, 6, generator=DRAWN, dtype=torch.float64)
Y = (X[:, 0] + X[:, 1] > 0).long()
SIZE = 3
"""The number of ranks."""
ROUNDING = 1e-9
"""Relative. Sums in another order differ by some 1e-16 in each step; a wrong weight of a batch by some 0.01."""
CONFIG = TrainConfig(epochs=2, batch_size=16, lr=0.3, seed=7)
"""Seven batches in a pass; the last has two rows, fewer than there are ranks."""
ACCUMULATING = TorchConfig(accumulate=3, clip_norm=0.5)
"""Each pass ends with a step of one batch."""


class Network(nn.Sequential):
    """Two layers, and one that the output does not depend on."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        self.unused = nn.Linear(2, 2)
        self.double()


def momentum(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr, momentum=0.9, weight_decay=0.1)


def trained(site: Site | None, data: Any, task: TrainConfig = CONFIG, **options: Any) -> Found:
    """Return the model of a training, its loss and its weight."""
    correct, teacher = options.pop("correct", None), options.pop("teacher", False)
    learner = TorchLearner(options.pop("model", Network), data, device="cpu", **options)
    learner.use(site=site)
    learner.init(3)
    extra = learner.teach(TorchLearner(Network, data, device="cpu").init(4), 0.5) if teacher else None
    made = learner.train(task, correct=correct, extra_loss=extra)
    return {"model": learner.model().buffer.view(np.float64), "weight": made.weight, **made.metrics}


class Walked(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(TensorDataset(X, Y))


class Texts(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(x, y, "text") for x, y in zip(X, Y, strict=True)])


def pull(model: Any, gradient: Any) -> Any:
    """Return a gradient that depends on the model and is not linear in the gradient of a rank."""
    return type(gradient)(gradient.layout, (gradient.buffer.view(np.float64).clip(-0.05, 0.05)).view(np.uint8))


def ignoring(site: Site | None) -> Found:
    """Most targets are ignored, so that some ranks have none in a batch."""
    targets = torch.where(torch.arange(98) % 12 == 0, Y, -100)
    return trained(site, (X, targets), TrainConfig(steps=9, batch_size=49, lr=0.3, seed=2))


def pixels(site: Site | None) -> Found:
    """Each row has four targets, and one in every fourth row is ignored: by some ranks none, by others one of them."""
    targets = Y[:, None].repeat(1, 4)
    targets[::4, 0] = -100

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Unflatten(1, (2, 4))).double()

    return trained(site, (X, targets), model=model)


def resumed(site: Site | None) -> Found:
    """A second learner goes on with the model and the optimizer's state of the first, as DiLoCo after a restart."""
    learner, state = TorchLearner(Network, (X, Y), device="cpu", optimizer=momentum), None
    model = learner.init(3)
    for _ in range(2):
        learner = TorchLearner(Network, (X, Y), device="cpu", optimizer=momentum)
        learner.use(site=site)
        learner.load(model)
        learner.load_optimizer_state(state)
        learner.train(CONFIG)
        model, state = learner.model(), learner.optimizer_state()
    return {"model": model.buffer.view(np.float64)}


def gradient(site: Site | None) -> Found:
    learner = TorchLearner(Network, (X, Y), device="cpu")
    learner.use(site=site)
    learner.init(3)
    made, tree = learner.gradient(CONFIG)
    return {"model": tree.buffer.view(np.float64), **made.metrics}


def alike(site: Site, config: TorchConfig | None = None) -> Found:
    """Return the distance of this rank's model from rank 0's after a training with statistics and dropout."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)).double()

    learner = TorchLearner(model, (X, Y), device="cpu", optimizer=momentum, config=config or TorchConfig())
    learner.use(site=site)
    learner.init(3)
    learner.train(CONFIG)
    mine = list(learner.weights.tensors().values())
    first = [one.detach().clone() for one in mine]
    site.copy_first(first)
    distance = torch.tensor([sum(float((a - b).abs().sum()) for a, b in zip(mine, first, strict=True))])
    site.add_up([distance])
    return {"distance": float(distance)}


def withdrawn(site: Site) -> Found:
    """Return the steps that each rank has made when rank 0 hears of a withdrawal in its third."""
    steps = []

    def progress(fraction: float) -> None:
        steps.append(fraction)
        if len(steps) >= 3 and site.rank == 0:
            raise Cancelled("the task was withdrawn")

    learner = TorchLearner(Network, (X, Y), device="cpu")
    learner.use(site=site)
    learner.init(3)
    try:
        learner.train(CONFIG, progress=progress)
    except Cancelled:
        made = torch.tensor([float(len(steps))])
        site.add_up([made])
        return {"steps": float(made) / site.size}
    raise AssertionError("it was trained to the end")


def refused(site: Site) -> Found:
    """Return the error for batches that cannot be divided."""

    class Identity(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 2).double()

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.layer(x), y)

    try:
        trained(site, Texts(), model=Identity, loss=lambda output, _: output)
    except LearnerFailed as error:
        return {"text": error.message}
    return {"text": "none"}


def overlapped(site: Site) -> Found:
    """Return for each bucket the number of layers whose gradients were known when its average began."""
    layers = nn.Sequential(*[nn.Linear(600, 600) for _ in range(4)])
    learner = TorchLearner(lambda: layers, (torch.randn(8, 600), torch.zeros(8, dtype=torch.long)), device="cpu")
    learner.use(site=site)
    divided, known, began = site.divided(learner.module, learner.place(), 0).module, list[int](), list[float]()
    assert isinstance(divided, DistributedDataParallel)
    for layer in layers.children():
        weight = layer.get_parameter("weight")
        weight.register_post_accumulate_grad_hook(lambda _: known.append(1))  # type: ignore[no-untyped-call]

    def average(_: object, bucket: Any) -> Any:
        began.append(float(len(known)))
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        assert work is not None
        return work.get_future().then(lambda done: done.value()[0])

    average.__annotations__.clear()  # it checks them
    divided.register_comm_hook(None, average)
    learner.train(TrainConfig(steps=1, batch_size=8, lr=0.1))
    return {"began": np.array(began)}


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)


CASES: dict[str, Case] = {
    "tensors": lambda site: trained(site, (X, Y)),
    "optimizer": lambda site: trained(site, (X, Y), optimizer=momentum),
    "accumulation": lambda site: trained(
        site, (X, Y), TrainConfig(epochs=1.5, batch_size=16, lr=0.3, seed=7), optimizer=momentum, config=ACCUMULATING
    ),
    "dataset": lambda site: trained(site, list(zip(X, Y, strict=True))),
    "sequence": lambda site: trained(site, (X, Y), TrainConfig(steps=9, batch_size=10, batch_index=4, lr=0.3)),
    "stream": lambda site: trained(site, Stream((X, Y)), TrainConfig(steps=9, batch_size=10, batch_index=4, lr=0.3)),
    "loader": lambda site: trained(site, loader()),
    "iterable": lambda site: trained(site, Walked()),
    "correction": lambda site: trained(site, (X, Y), correct=pull),
    "distillation": lambda site: trained(site, (X, Y), teacher=True),
    "ignored targets": ignoring,
    "ignored pixels": pixels,
    "gradient": gradient,
    "optimizer state": resumed,
}
"""Trainings with the same result in any number of processes."""

OTHERS: dict[str, Any] = {
    "alike": alike,
    "withdrawn": withdrawn,
    "refused": refused,
    "overlapped": overlapped,
}


def results(folder: Path, module: str) -> dict[str, Found]:
    """Run all cases of a module, and return the results of rank 0.

    One process imports what takes seconds, and is then forked into the ranks.
    """
    with subprocess.Popen([sys.executable, "-m", module, str(folder)], start_new_session=True) as started:
        try:
            assert started.wait(240) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    with np.load(folder / "results.npz") as file:
        found: dict[str, Found] = {}
        for key, value in file.items():
            case, _, name = key.partition(":")
            found.setdefault(case, {})[name] = value
    return found


def assert_equal_alone(case: Case, together: Found) -> None:
    """Check that the ranks found what a single process finds, up to rounding."""
    alone = case(None)
    assert alone.keys() == together.keys()
    for name, value in alone.items():
        np.testing.assert_allclose(together[name], value, rtol=ROUNDING, atol=ROUNDING, err_msg=name)


def fork(cases: Mapping[str, Case], folder: Path) -> None:
    """Run cases at all ranks. Raises `ChildProcessError` if one of them fails."""
    import torch._dynamo  # noqa: F401 - else the first optimizer at each rank imports it

    ranks = []
    for rank in range(SIZE):
        if not (child := os.fork()):
            try:
                run(cases, folder, rank)
            finally:
                traceback.print_exc()
                os._exit(1)
        ranks.append(child)
    if codes := [code for _ in ranks if (code := os.wait()[1])]:
        raise ChildProcessError(f"ranks ended with {codes}")


def run(cases: Mapping[str, Case], folder: Path, rank: int) -> NoReturn:
    """Run cases at one rank, and end the process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=SIZE)
    site = Site()
    found = {f"{case}:{name}": one for case, run in cases.items() for name, one in run(site).items()}
    if rank == 0:
        np.savez(folder / "results.npz", **found)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # the threads of gloo need not be awaited


if __name__ == "__main__":
    fork({**CASES, **OTHERS}, Path(sys.argv[1]))
