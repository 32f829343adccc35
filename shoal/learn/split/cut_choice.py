"""The choice of a cut from the time and the bytes of each module. Needs torch for the measurement only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor, nn

from shoal.core.errors import InvalidJob
from shoal.learn.split.cutting import cut_children

REPEATS = 3


@dataclass(frozen=True)
class PieceCost:
    """A module's cost for one batch: seconds of both passes on this machine, bytes of its output, and whether it has
    parameters to train."""

    name: str
    seconds: float
    output_bytes: int
    is_trained: bool = True


@dataclass(frozen=True)
class SplitSpeed:
    """The speed of a node relative to this machine, of the coordinator, and of the link between them in both
    directions together."""

    node: float = 1.0
    coordinator: float = 10.0
    bytes_per_s: float = 1e6

    def __post_init__(self) -> None:
        if not min(self.node, self.coordinator, self.bytes_per_s) > 0:
            raise InvalidJob(f"the speeds {self} must be above 0", code="split.cut")


def choose_cut(pieces: Sequence[PieceCost], speed: SplitSpeed, last: int = 0) -> int:
    """Return the number of modules before the cut for which a batch takes least time: the first of equal ones.

    The last `last` modules are the node's, too. A batch costs the node's modules, the coordinator's modules, and the
    activations and the gradient at each cut. Raises `InvalidJob` if no cut leaves both sides something to train.
    """
    end = len(pieces) - last
    at_second = 2 * pieces[end - 1].output_bytes / speed.bytes_per_s if last and end > 0 else 0.0
    found = {
        cut: sum(one.seconds for one in (*pieces[:cut], *pieces[end:])) / speed.node
        + sum(one.seconds for one in pieces[cut:end]) / speed.coordinator
        + 2 * pieces[cut - 1].output_bytes / speed.bytes_per_s
        + at_second
        for cut in range(1, end)
        if any(one.is_trained for one in pieces[:cut]) and any(one.is_trained for one in pieces[cut:end])
    }
    if not found:
        text, hint = "no cut leaves both sides a layer to train", "use a model of more modules"
        raise InvalidJob(text, code="split.cut", hint=hint)
    return min(found, key=lambda cut: (found[cut], cut))


def balanced_cuts(pieces: Sequence[PieceCost], count: int) -> tuple[str, ...]:
    """Return the names of the first modules of all parts but the first, of which the slowest takes least time.

    Raises `InvalidJob` if there are no such parts with something to train in each.
    """
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for _ in range(count):
        found: dict[int, tuple[float, tuple[int, ...]]] = {}
        for start, (slowest, ends) in best.items():
            for end in range(start + 1, len(pieces) + 1):
                part = pieces[start:end]
                if any(one.is_trained for one in part):
                    made = max(slowest, sum(one.seconds for one in part)), (*ends, end)
                    found[end] = min(made, found.get(end, made))
        best = found
    if len(pieces) not in best:
        text = f"the model has no {count} parts with a layer to train each"
        raise InvalidJob(text, code="split.cut", hint="use a model of more modules, or fewer parts")
    return tuple(pieces[end].name for end in best[len(pieces)][1][:-1])


def unmeasured_pieces(model: nn.Module) -> list[PieceCost]:
    """Return a chain's modules, all with the same cost."""
    return [PieceCost(name, 1.0, 0, _is_trained(module)) for name, module in cut_children(model)]


def measured_pieces(model: nn.Module, value: Tensor) -> list[PieceCost]:
    """Return the costs of a chain's modules, measured on one batch of inputs: the least of `REPEATS` times."""
    found = []
    for name, module in cut_children(model):
        is_training = module.training
        module.eval()
        seconds, output = min((_timed(module, value) for _ in range(REPEATS)), key=lambda one: one[0])
        module.train(is_training)
        module.zero_grad(set_to_none=True)
        found.append(PieceCost(name, seconds, output.numel() * output.element_size(), _is_trained(module)))
        value = output
    return found


def _is_trained(module: nn.Module) -> bool:
    return any(one.requires_grad for one in module.parameters())


def _timed(module: nn.Module, value: Tensor) -> tuple[float, Tensor]:
    start = perf_counter()
    inputs = value.detach().requires_grad_(value.is_floating_point())
    output = module(inputs)
    if not isinstance(output, Tensor):
        text = f"a {type(module).__name__} gives {type(output).__name__}, so no cut can be measured"
        raise InvalidJob(text, code="split.cut", hint="set the cut")
    if output.requires_grad:
        torch.autograd.grad(
            output.sum(), [inputs, *(p for p in module.parameters() if p.requires_grad)], allow_unused=True
        )
    return perf_counter() - start, output.detach()
