"""The layers of a network as a chain: which layer of a larger network belongs to which of a smaller one."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from shoal.core.errors import InvalidJob
from shoal.core.errors.phrases import counted

CODE = "learner.growth"


def growth_error(text: str, hint: str) -> InvalidJob:
    """Return the error of a network that cannot grow into another."""
    return InvalidJob(f"the network cannot grow: {text}", code=CODE, hint=hint)


def paired_layers(small: nn.Sequential, large: nn.Sequential) -> list[tuple[str, nn.Module | None, nn.Module]]:
    """Return each layer of the larger network, with its name and the layer of the smaller one of that name (None: new).

    Raises `InvalidJob` if the larger network lacks a layer, or has them in another order.
    """
    before, after = dict(_layers(small)), dict(_layers(large))
    kept = [name for name in after if name in before]
    if kept != list(before):
        missing = [name for name in before if name not in after]
        fault = f"the larger one lacks {counted(len(missing), 'layer')}: {', '.join(missing)}"
        raise growth_error(
            fault if missing else "its layers stand in another order in the larger one",
            "name the layers, nn.Sequential(OrderedDict(…)), and keep the names and their order",
        )
    return [(name, before.get(name), layer) for name, layer in after.items()]


def _layers(chain: nn.Sequential, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers in the order in which they compute, with their names as in `state_dict`."""
    for name, layer in chain.named_children():
        if isinstance(layer, nn.Sequential):
            yield from _layers(layer, f"{prefix}{name}.")
        else:
            yield prefix + name, layer
