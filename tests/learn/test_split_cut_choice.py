"""The cut that costs least time, from the costs of the modules."""

import pytest
import torch
from torch import nn

from shoal.core.errors import InvalidJob
from shoal.learn.split.cut_choice import PieceCost, SplitSpeed, choose_cut, measured_pieces

COSTS = [
    PieceCost("a", 1.0, 4000),
    PieceCost("b", 0.0, 4000, is_trained=False),
    PieceCost("c", 4.0, 400),
    PieceCost("d", 1.0, 40),
]


@pytest.mark.parametrize(
    ("speed", "last", "cut"),
    [
        (SplitSpeed(1.0, 10.0, 1e9), 0, 1),  # a fast link: as little as possible at the node
        (SplitSpeed(1.0, 1.0, 1000.0), 0, 3),  # a slow link: where fewest bytes are sent
        (SplitSpeed(1.0, 10.0, 1800.0), 0, 3),  # 4.0 s less of bytes, 3.6 s more of work
        (SplitSpeed(1.0, 10.0, 2200.0), 0, 1),  # 3.3 s less of bytes
        (SplitSpeed(1.0, 10.0, 1e9), 1, 1),
        (SplitSpeed(10.0, 1.0, 1e9), 1, 1),
    ],
)
def test_the_cheapest_cut(speed: SplitSpeed, last: int, cut: int) -> None:
    assert choose_cut(COSTS, speed, last) == cut


def test_a_cut_leaves_both_sides_something_to_train() -> None:
    with pytest.raises(InvalidJob, match="no cut leaves both sides"):
        choose_cut(COSTS[:2], SplitSpeed())
    with pytest.raises(InvalidJob, match="above 0"):
        SplitSpeed(bytes_per_s=0.0)


def test_modules_are_measured() -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    found = measured_pieces(model, torch.zeros(5, 6))
    assert [(one.name, one.output_bytes, one.is_trained) for one in found] == [
        ("0", 5 * 16 * 4, True),
        ("1", 5 * 16 * 4, False),
        ("2", 5 * 3 * 4, True),
    ]
    assert all(one.seconds > 0 for one in found)
    assert all(parameter.grad is None for parameter in model.parameters())
