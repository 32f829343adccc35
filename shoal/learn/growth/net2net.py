"""Function-preserving growth (Net2Net; Chen, Goodfellow, Shlens, ICLR 2016).

wider     Replicate units at random. Their outgoing weights divide those of the unit that they replicate (section 2.3).
deeper    A new layer begins as the identity (section 2.4). A new activation must leave what comes as it is: a ReLU
          after a ReLU does.

Layers belong together by their names. The function is kept in evaluation mode: in training mode BatchNorm computes
with the statistics of a batch, and a new one normalizes again.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from shoal.learn.growth.chain import growth_error, paired_layers
from shoal.learn.growth.units import Units, replicated, same_units

UNIT_BY_UNIT = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Identity),
    *(nn.Dropout, nn.Dropout2d, nn.Flatten, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
)
"""Layers that compute each unit from itself alone, so that replicas stay replicas."""
NONNEGATIVE = (nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Softplus)
KEEPS_SIGN = UNIT_BY_UNIT[UNIT_BY_UNIT.index(nn.Identity) :]
"""Layers whose outputs are not below 0 if their inputs are not."""
TRANSPARENT = (nn.Identity, nn.Dropout, nn.Dropout2d)
"""Layers that change nothing in evaluation mode."""
CONVOLUTION = ("kernel_size", "stride", "padding", "dilation", "padding_mode", "groups")


def grow(small: nn.Module, large: nn.Module, seed: int = 0) -> None:
    """Load weights into `large` with which it computes what `small` does, both in evaluation mode.

    The same tensors are copied. Otherwise both modules must be an `nn.Sequential`, which may contain others, and layers
    of one name belong together: a Linear, a Conv2d and the BatchNorm after it may be wider, and new ones may stand
    between. Nothing but the seed decides which units are replicated. Raises `InvalidJob` for other networks, with
    `large` then undefined.
    """
    with torch.no_grad():
        if isinstance(small, nn.Sequential) and isinstance(large, nn.Sequential):
            _Growth(seed).grow(small, large)
        elif _shapes(small) == _shapes(large):
            large.load_state_dict(small.state_dict())
        else:
            raise growth_error(
                "its tensors differ from the larger one's, and not both are an nn.Sequential",
                "make each network one nn.Sequential of named layers, or keep the names and shapes of all tensors",
            )


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


class _Growth:
    """The growth of one network, layer by layer."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._units: Units | None = None  # None before the first layer with weights: the inputs
        self._name = ""

    def grow(self, small: nn.Sequential, large: nn.Sequential) -> None:
        for self._name, old, new in paired_layers(small, large):
            if old is None:
                self._insert(new)
            else:
                self._take_over(old, new)
            if self._units is not None:
                kept = self._units.is_nonnegative and (old is None or isinstance(new, KEEPS_SIGN))
                self._units = replace(self._units, is_nonnegative=kept or isinstance(new, NONNEGATIVE))
        if self._units is not None and not self._units.is_same:
            raise self._error("has more outputs than before", "keep the number of outputs of the last layer")

    def _error(self, text: str, hint: str) -> Exception:
        return growth_error(f"layer {self._name} {text}", hint)

    # Layers that the smaller network has

    def _take_over(self, old: nn.Module, new: nn.Module) -> None:
        if type(old) is not type(new) or _settings(old) != _settings(new):
            raise self._error(
                f"is {old} in the smaller network and {new} in the larger one",
                "give layers of one name the same type and settings; only the number of their units may grow",
            )
        if isinstance(old, nn.Linear | nn.Conv2d) and isinstance(new, nn.Linear | nn.Conv2d):
            self._widen(old, new)
        elif isinstance(old, _BatchNorm) and isinstance(new, _BatchNorm):
            source = self._incoming(old.num_features, new.num_features).source
            for name, tensor in old.state_dict().items():
                new.state_dict()[name].copy_(tensor[source] if tensor.ndim else tensor)
        elif _shapes(old) != _shapes(new) or not (
            self._units is None or self._units.is_same or isinstance(new, UNIT_BY_UNIT)
        ):
            raise self._error(
                f"({type(new).__name__}) cannot become wider", "widen Linear, Conv2d and the BatchNorm after them only"
            )
        else:
            new.load_state_dict(old.state_dict())

    def _incoming(self, before: int, after: int) -> Units:
        """Return the units that come into a layer with `before` inputs, and `after` in the larger network."""
        units = same_units(before) if self._units is None else self._units
        self._units = units = units.spread(before // units.count)
        if (units.count, len(units.source)) != (before, after):
            raise self._error(
                f"has {before} inputs, and {after} in the larger network, where {units.count} and {len(units.source)} "
                "come",
                "let inputs grow with the layer before; an adaptive pool makes the same places of pictures of any size",
            )
        return units

    def _widen(self, old: nn.Linear | nn.Conv2d, new: nn.Linear | nn.Conv2d) -> None:
        before, wanted = old.weight.shape, new.weight.shape
        units = self._incoming(before[1], wanted[1])
        if wanted[0] < before[0]:
            raise self._error(
                f"has {wanted[0]} units, and {before[0]} before", "keep the number of units, or increase it"
            )
        if isinstance(old, nn.Conv2d) and old.groups > 1 and before != wanted:
            raise self._error("has groups", "widen layers without groups only")
        made = same_units(before[0]) if wanted[0] == before[0] else replicated(before[0], wanted[0], self._generator)
        share = units.share.to(old.weight).reshape(-1, *[1] * (old.weight.ndim - 2)) if not units.is_same else 1.0
        new.weight.copy_(old.weight[made.source][:, units.source] * share)
        if new.bias is not None and old.bias is not None:
            new.bias.copy_(old.bias[made.source])
        self._units = made

    # New layers

    def _insert(self, new: nn.Module) -> None:
        if isinstance(new, nn.Linear | nn.Conv2d):
            if not _keeps_shape(new):
                raise self._error(
                    "is new and cannot be the identity",
                    "give it as many outputs as inputs, and a convolution an odd kernel, stride 1, no groups and "
                    'padding="same"',
                )
            inputs = new.weight.shape[1]
            if self._units is not None:
                self._incoming(inputs * self._units.count // len(self._units.source), inputs)
            _be_identity(new)
        elif isinstance(new, _BatchNorm) and new.affine and new.track_running_stats:
            new.reset_running_stats()
            new.bias.zero_()
            new.weight.fill_((1 + new.eps) ** 0.5)
        elif not (isinstance(new, TRANSPARENT) or (isinstance(new, nn.ReLU) and self._is_nonnegative)):
            raise self._error(
                f"({type(new).__name__}) is new and changes its inputs",
                "insert Linear, Conv2d, BatchNorm or Dropout, and a ReLU where no input is below 0, as after a ReLU",
            )

    @property
    def _is_nonnegative(self) -> bool:
        return self._units is not None and self._units.is_nonnegative


def _settings(layer: nn.Module) -> object:
    """Return what else than the number of units a layer's function depends on."""
    if isinstance(layer, nn.Linear):
        return layer.bias is not None
    if isinstance(layer, nn.Conv2d):
        return [layer.bias is not None, *(getattr(layer, name) for name in CONVOLUTION)]
    if isinstance(layer, _BatchNorm):
        return layer.eps, layer.affine, layer.track_running_stats
    return repr(layer)


def _keeps_shape(layer: nn.Linear | nn.Conv2d) -> bool:
    """Return whether a layer's outputs have the shape of its inputs."""
    if isinstance(layer, nn.Linear):
        return layer.in_features == layer.out_features
    around = tuple(d * (k - 1) // 2 for d, k in zip(layer.dilation, layer.kernel_size, strict=True))
    return (
        layer.in_channels == layer.out_channels
        and layer.groups == 1
        and layer.stride == (1, 1)
        and all(size % 2 for size in layer.kernel_size)
        and layer.padding in ("same", around)
    )


def _be_identity(layer: nn.Linear | nn.Conv2d) -> None:
    """Give a layer the weights of the identity."""
    if isinstance(layer, nn.Linear):
        nn.init.eye_(layer.weight)
    else:
        nn.init.dirac_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
