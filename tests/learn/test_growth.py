"""Growing networks: the larger one computes what the smaller one does, or says why it cannot."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from shoal.core.errors import InvalidJob
from shoal.learn.growth import grow


def named(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def block(name: str, before: int, after: int) -> dict[str, nn.Module]:
    convolution = nn.Conv2d(before, after, 3, padding=1)
    return {f"conv_{name}": convolution, f"norm_{name}": nn.BatchNorm2d(after), f"relu_{name}": nn.ReLU()}


def network(*widths: int, hidden: int = 8, deeper: bool = False) -> nn.Sequential:
    """Return convolutions of these widths and two linear layers; `deeper`: with one more of each."""
    ends = {"pool": nn.AdaptiveAvgPool2d(2), "flat": nn.Flatten(), "hidden": nn.Linear(4 * widths[-1], hidden)}
    between = block("new", widths[0], widths[0]) if deeper else {}
    more: dict[str, nn.Module] = {"more": nn.Linear(hidden, hidden), "relu_more": nn.ReLU()} if deeper else {}
    body = nn.Sequential(OrderedDict(block("a", 1, widths[0]) | between | block("b", *widths)))
    return named(body=body, **ends, relu=nn.ReLU(), **more, drop=nn.Dropout(), head=nn.Linear(hidden, 10))


def trained(module: nn.Sequential) -> nn.Sequential:
    """Return the module after some steps, so that BatchNorm has statistics of its own."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(3 * torch.randn(16, 1, 8, 8)), torch.randint(10, (16,)))
        torch.autograd.backward(loss)
        optimizer.step()
    return module


def gap(small: nn.Module, large: nn.Module, inputs: Tensor) -> float:
    """Return the largest difference of the outputs."""
    with torch.no_grad():
        return float((small.eval()(inputs) - large.eval()(inputs)).abs().max())


LARGER = {
    "the same size": network(4, 6),
    "wider": network(7, 11, hidden=20),
    "deeper": network(4, 6, deeper=True),
    "wider and deeper": network(9, 13, hidden=9, deeper=True),
}


@pytest.mark.parametrize("large", LARGER.values(), ids=LARGER)
def test_a_larger_network_computes_the_same(large: nn.Sequential) -> None:
    small = trained(network(4, 6))
    grow(small, large, seed=3)
    assert gap(small, large, torch.randn(32, 1, 8, 8)) < 1e-5
    assert gap(small, large, torch.randn(32, 1, 16, 16)) < 1e-5  # also with larger pictures
    assert gap(network(4, 6), large, torch.randn(32, 1, 8, 8)) > 1e-2


def test_the_seed_alone_decides_and_replicas_learn_apart() -> None:
    small = trained(network(4, 6))
    larger = [network(12, 6), network(12, 6), network(12, 6)]
    for large, seed in zip(larger, (1, 1, 2), strict=True):
        grow(small, large, seed)
    one, again, other = (torch.cat([tensor.flatten().float() for tensor in m.state_dict().values()]) for m in larger)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    weights = trained(larger[0]).state_dict()["body.conv_a.weight"]
    assert len(weights.flatten(1).unique(dim=0)) == 12  # of 4 units, which began as equal replicas


class Other(nn.Module):
    def __init__(self, units: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, units)


def test_a_module_of_any_kind_grows_into_one_with_the_same_tensors() -> None:
    small, large = Other(4), Other(4)
    grow(small, large)
    assert torch.equal(small.layer.weight, large.layer.weight)


def two(first: nn.Module, second: nn.Module) -> nn.Sequential:
    return named(a=first, b=second)


REFUSED = {
    "not both are an nn.Sequential": (Other(4), Other(5)),
    "lacks 1 layer: b": (two(nn.Linear(3, 4), nn.Tanh()), named(a=nn.Linear(3, 4))),
    "another order": (two(nn.Linear(3, 3), nn.Tanh()), named(b=nn.Tanh(), a=nn.Linear(3, 3))),
    "layer b is": (two(nn.Linear(3, 4), nn.Tanh()), two(nn.Linear(3, 4), nn.ReLU())),
    "layer a is": (two(nn.Conv2d(1, 4, 3), nn.ReLU()), two(nn.Conv2d(1, 4, 5), nn.ReLU())),
    "has 3 units, and 4 before": (two(nn.Linear(3, 4), nn.Linear(4, 2)), two(nn.Linear(3, 3), nn.Linear(3, 2))),
    "has 16 inputs, and 36 in the larger network, where 16 and 16 come": (
        two(nn.Conv2d(1, 4, 3), nn.Linear(16, 2)),
        two(nn.Conv2d(1, 4, 3), nn.Linear(36, 2)),
    ),
    "has more outputs": (two(nn.Linear(3, 4), nn.ReLU()), two(nn.Linear(3, 5), nn.ReLU())),
    "LayerNorm) cannot become wider": (
        named(a=nn.Linear(3, 4), b=nn.LayerNorm(4), c=nn.Linear(4, 2)),
        named(a=nn.Linear(3, 5), b=nn.LayerNorm(4), c=nn.Linear(5, 2)),
    ),
    "Softmax) cannot become wider": (two(nn.Linear(3, 4), nn.Softmax(1)), two(nn.Linear(3, 5), nn.Softmax(1))),
    "has groups": (two(nn.Conv2d(4, 4, 3, groups=2), nn.ReLU()), two(nn.Conv2d(4, 6, 3, groups=2), nn.ReLU())),
    "cannot be the identity": (named(a=nn.Linear(3, 4)), two(nn.Linear(3, 4), nn.Linear(4, 5))),
    "layer b is new": (named(a=nn.Conv2d(1, 4, 3)), two(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3))),
    "ReLU) is new": (named(a=nn.Linear(3, 4)), two(nn.Linear(3, 4), nn.ReLU())),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_network_that_cannot_grow_is_refused_with_the_layer_and_what_to_do(text: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        grow(*REFUSED[text])
    assert text in refused.value.message
    assert refused.value.code == "learner.growth"
    assert refused.value.hint
