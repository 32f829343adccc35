"""Dense layers that compute in shards: torch's tensor parallelism, on the rows of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from shoal.core.errors import InvalidJob
from shoal.learn.data.batches import Batch
from shoal.learn.data.divided import taken
from shoal.learn.shards.units import CODE

Layers = Sequence[str | tuple[str, str]]
"""Names of single layers, and of pairs of which the second takes the outputs of the first."""


def names_of(layers: Layers) -> list[str]:
    """Return all names."""
    return [name for one in layers for name in ((one,) if isinstance(one, str) else one)]


def check_layers(module: nn.Module, layers: Layers, ranks: int) -> None:
    """Raise `InvalidJob` for layers that this number of ranks cannot divide."""
    known, names = dict(module.named_modules()), names_of(layers)
    for name in names:
        if name not in known:
            near = ", ".join(other for other, one in known.items() if isinstance(one, nn.Linear))
            raise InvalidJob(f"the model has no module {name!r}", code=CODE, hint=f"its dense layers are {near}")
        if not isinstance(known[name], nn.Linear):
            text = f"layer {name} is a {type(known[name]).__name__}, and only nn.Linear computes in shards"
            raise InvalidJob(text, code=CODE, hint="leave it out: each process computes it on its own rows")
        if names.count(name) > 1:
            raise InvalidJob(f"layer {name} is named {names.count(name)} times", code=CODE, hint="name each layer once")
    for one in layers:
        pair: tuple[str, ...] = (one,) if isinstance(one, str) else one
        first, last = known[pair[0]], known[pair[-1]]
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        if len(pair) != 1 and (len(pair) != 2 or first.out_features != last.in_features):
            text = f"layers {' and '.join(pair)} are not a pair: the second layer takes the outputs of the first"
            raise InvalidJob(text, code=CODE, hint='write layers=(("classifier.1", "classifier.4"), "classifier.6")')
        if first.out_features % ranks:
            text = f"layer {pair[0]} has {first.out_features} outputs, which {ranks} processes cannot divide equally"
            raise InvalidJob(text, code=CODE, hint="leave it out, or join with a number of processes that divides it")


def divide_layers(module: nn.Module, layers: Layers, mesh: DeviceMesh) -> set[nn.Parameter]:
    """Let layers compute in shards, and return their parameters."""
    by_rows = Shard(0)
    for one in layers:
        if isinstance(one, str):
            plan: dict[str, Any] = {one: ColwiseParallel(input_layouts=by_rows, output_layouts=by_rows)}
        else:
            plan = {one[0]: ColwiseParallel(input_layouts=by_rows), one[1]: RowwiseParallel(output_layouts=by_rows)}
        parallelize_module(module, mesh, plan)
    for name in names_of(layers):
        module.get_submodule(name).register_forward_hook(_own_numbers)
    return {parameter for name in names_of(layers) for parameter in module.get_submodule(name).parameters()}


def average_gradients(module: nn.Module, layers: Layers, ranks: int) -> None:
    """Divide the gradients of layers by the number of ranks: they are sums over the rows of all of them."""
    for name in names_of(layers):
        for parameter in module.get_submodule(name).parameters():
            if parameter.requires_grad:
                parameter.register_hook(partial(torch.mul, 1.0 / ranks))  # type: ignore[no-untyped-call]


def _own_numbers(*call: Any) -> Tensor:
    """Copy the output of a layer, a view of a `DTensor`, so that the next function may change it in place."""
    output: Tensor = call[-1]
    return output.clone()


class EqualRows:
    """Hooks of a module by which all ranks compute equally many rows: some again, whose outputs are then dropped."""

    def __init__(self, module: nn.Module) -> None:
        self._given, self._rows = 0, 0
        module.register_forward_pre_hook(self._fill)
        module.register_forward_hook(self._drop)

    def expect(self, batch: Batch, ranks: int) -> None:
        """Prepare for the rows that a rank has of a batch."""
        self._given, self._rows = batch.own or batch.examples, -(-batch.examples // ranks)

    def expect_whole(self) -> None:
        """Prepare for batches that all ranks compute whole."""
        self._given = self._rows

    def _fill(self, module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        return self._again(inputs, self._given, self._rows)

    def _drop(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        return self._again(output, self._rows, self._given)

    def _again(self, part: Any, there: int, wanted: int) -> Any:
        return part if there == wanted else taken(part, torch.arange(wanted) % there, there)
