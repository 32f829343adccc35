"""The fusion of several devices' tensors, of which some may be absent, and features of one bit.

    MP      the greatest value of the devices that are present
    AP      the mean of those
    CC      all of them, along the second dimension; an absent device is 0

Teerapittayanon et al. 2017, section III.C.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from shoal.core.errors import InvalidJob

Scheme = Literal["MP", "AP", "CC"]


def schemes_of(text: str) -> tuple[Scheme, Scheme]:
    """Return the schemes of scores and of features. Raises `InvalidJob` for another text than two schemes."""
    first, _, second = text.partition("-")
    known = {name: name for name in get_args(Scheme)}
    if first not in known or second not in known:
        raise InvalidJob(f"the scheme is {text!r}", code="exits.scheme", hint='use MP, AP or CC twice, as in "AP-CC"')
    return known[first], known[second]


def fuse(scheme: Scheme, parts: Tensor, present: Tensor) -> Tensor:
    """Return the fusion of `parts` [devices, batch, …], of those where `present` [devices, batch] is true.

    At least one device is present for each example. One device alone is returned as it is.
    """
    if len(parts) == 1:
        return parts[0]
    absent = ~present.reshape(*present.shape, *[1] * (parts.dim() - 2))
    if scheme == "MP":
        return parts.masked_fill(absent, -torch.inf).amax(0)
    kept = parts.masked_fill(absent, 0)
    return torch.cat(kept.unbind(0), 1) if scheme == "CC" else kept.sum(0) / (~absent).sum(0)


def binarize(values: Tensor) -> Tensor:
    """Return +1 where a value is at least 0, else -1. The gradient passes through where the value is in [-1, 1].

    Hubara et al.: "Binarized Neural Networks", NeurIPS 2016, Eq. 4 (the straight-through estimator).
    """
    clipped = values.clamp(-1, 1)
    return clipped + (torch.where(values >= 0, 1.0, -1.0).to(values.dtype) - clipped).detach()
