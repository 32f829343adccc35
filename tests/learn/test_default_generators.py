"""Seeding of the default generators: what a block draws follows from its seed, and the state before it comes back."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn

import shoal
from shoal.learn import TorchLearner
from shoal.learn.default_generators import kept_generator, seeded_generators


def drawn() -> list[float]:
    """Return an odd number of normal numbers, so that numpy keeps the second of the last pair, and others."""
    return [*np.random.normal(size=3), np.random.random(), random.gauss(0.0, 1.0), random.random()]  # noqa: NPY002


def seed_both(seed: int) -> None:
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def test_a_block_draws_by_its_seed_as_if_the_generators_were_seeded() -> None:
    seed_both(7)
    expected = drawn()
    seed_both(1)
    drawn()  # a second normal number waits
    for _ in range(2):
        with seeded_generators(7):
            assert drawn() == expected


def test_the_state_before_a_block_comes_back() -> None:
    seed_both(1)
    expected = [drawn(), drawn()]
    seed_both(1)
    first = drawn()
    with seeded_generators(7):
        drawn()
    assert [first, drawn()] == expected


def test_a_block_inside_another_does_not_change_what_the_outer_one_draws_uniformly() -> None:
    with seeded_generators(7):
        expected = [np.random.random(), random.random(), np.random.random()]  # noqa: NPY002
    with seeded_generators(7):
        found = [np.random.random(), random.random()]  # noqa: NPY002
        with seeded_generators(8):
            drawn()
        found.append(np.random.random())  # noqa: NPY002
    assert found == expected


def test_what_is_drawn_between_two_blocks_goes_on() -> None:
    seed_both(1)
    expected = [np.random.random() for _ in range(2)]  # noqa: NPY002
    seed_both(1)
    found = []
    with kept_generator():
        for seed in (7, 8):
            with seeded_generators(seed):
                drawn()
            found.append(np.random.random())  # noqa: NPY002
    assert found == expected


def test_a_simulation_leaves_the_state_as_it_was() -> None:
    learners = [
        TorchLearner(lambda: nn.Linear(2, 1), (torch.ones(4, 2), torch.ones(4, 1)), loss=nn.functional.mse_loss)
    ]
    seed_both(1)
    expected = [drawn(), drawn()]
    seed_both(1)
    first = drawn()
    shoal.simulate(shoal.JobSpec(name="one", rounds=1, algorithm={"name": "fedavg"}), learners, progress=False)
    assert [first, drawn()] == expected
