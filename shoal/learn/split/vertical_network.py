"""Networks for vertical data: a head for the features of each party, and one tail."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn


class VerticalNetwork(nn.Module):
    """A head for each party, by name, and a tail on their outputs, which are concatenated along dimension 1.

    It takes one input for each head, in their order.
    """

    def __init__(self, heads: Mapping[str, nn.Module], tail: nn.Module) -> None:
        super().__init__()
        self.heads, self.tail = nn.ModuleDict(heads), tail

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the tail's output."""
        outputs = [head(one) for head, one in zip(self.heads.values(), inputs, strict=True)]
        for one in outputs:
            if one.requires_grad:
                # A party gets its gradient as a tensor of its own; a slice would give other bits in some operators.
                one.register_hook(Tensor.contiguous)
        scores: Tensor = self.tail(torch.cat(outputs, 1))
        return scores

    def tail_part(self) -> nn.Sequential:
        """Return the tail, whose tensors have the names of the whole network."""
        return nn.Sequential(OrderedDict([("tail", self.tail)]))


def head_part(party: str, head: nn.Module) -> nn.Sequential:
    """Return a party's head, whose tensors have the names of the whole network."""
    return nn.Sequential(OrderedDict([("heads", nn.Sequential(OrderedDict([(party, head)])))]))
