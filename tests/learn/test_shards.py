"""A model in shards at several processes, against one process that trains all of it."""

from __future__ import annotations

import pytest

from tests.learn.shard_group import CASES, Network
from tests.learn.site_group import SIZE, Found, assert_equal_alone, results

pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    return results(tmp_path_factory.mktemp("shards"), "tests.learn.shard_group")


@pytest.mark.parametrize("case", CASES)
def test_the_model_does_not_depend_on_the_number_of_processes(case: str, together: dict[str, Found]) -> None:
    assert_equal_alone(CASES[case], together[case])


def test_all_ranks_have_the_same_statistics(together: dict[str, Found]) -> None:
    assert together["alike"]["distance"] == 0.0


def test_a_process_has_the_memory_of_its_shards(together: dict[str, Found]) -> None:
    parameters = dict(Network().named_parameters())
    trained = {name: one for name, one in parameters.items() if one.requires_grad}
    moved = {name: one for name, one in trained.items() if not name.startswith("unused")}
    kinds = {"weight_bytes": parameters, "gradient_bytes": trained, "optimizer_bytes": moved}
    for name, held in kinds.items():
        shards = [one.chunk(SIZE) for one in held.values()]
        expected = [sum(one[rank].nbytes for one in shards if rank < len(one)) for rank in range(SIZE)]
        assert list(together["measured"][name]) == expected


ADDED = 2 * (SIZE - 1) * 8 / SIZE
"""All processes add up their numbers of targets."""


def test_bytes_between_processes_are_counted(together: dict[str, Found]) -> None:
    """Shards of equal size: a tensor of 7 rows has 3 in each process."""
    block, others, frozen, unused = 3 * 9 + 3 + 3 * 7 + 3, 3 * 6 + 3 + 9 + 1, 3 * 9 + 3, 2 + 1
    gathered = 3 * 2 * block + others + unused  # blocks for both passes; the others stay until the backward pass
    gradients = 3 * block - frozen + others
    assert set(together["measured"]["bytes_sent"]) == {round((SIZE - 1) * (gathered + gradients) * 8 + ADDED)}


def test_bytes_and_memory_of_dense_layers_that_compute_in_shards(together: dict[str, Found]) -> None:
    """14 rows are 5 in each process; each sends what the others lack of inputs, outputs and their gradients."""
    convolution, last = 3 + 1, 2 * 7 + 2
    own = 4 * 12 + 4 + 4 * 7 + 7 + convolution + last  # the second layer has a whole bias
    assert set(together["dense layers, measured"]["weight_bytes"]) == {own * 8}
    activations = 2 * 5 * (12 + 7)
    parameters = 3 * (convolution + last)  # each is gathered for both passes, and its gradients are added up
    expected = round((SIZE - 1) * (activations + parameters) * 8 + ADDED)
    assert set(together["dense layers, measured"]["bytes_sent"]) == {expected}


def test_a_withdrawn_task_leaves_nothing_on_the_device(together: dict[str, Found]) -> None:
    assert together["withdrawn"]["bytes"] == 0


def test_shards_that_cannot_be_are_refused(together: dict[str, Found]) -> None:
    only = "and each process has shards of the model only"
    assert {name: str(text) for name, text in together["refusals"].items()} == {
        "unknown": "the model has no module 'absent'",
        "container": "module blocks is a ModuleList that does not compute with parameters of its own",
        "without parameters": "module blocks.0.1 is a Tanh that does not compute with parameters of its own",
        "whole": "the model has no modules in an nn.Sequential or nn.ModuleList that could be gathered one by one",
        "tied": "module 1 shares the parameter 1.0.weight with another unit",
        "number": "scale is a single number, which cannot be divided",
        "types": "module 0 has parameters of the types torch.float32, torch.float64",
        "fp16": "fp16 with parallel=FullyShard",
        "unknown layer": "the model has no module 'dense.9'",
        "convolution": "layer found.1 is a Conv1d, and only nn.Linear computes in shards",
        "twice": "layer dense.0 is named 2 times",
        "no pair": "layers dense.0 and dense.4 are not a pair: the second layer takes the outputs of the first",
        "odd": f"layer dense.2 has 7 outputs, which {SIZE} processes cannot divide equally",
        "correction": f"the job corrects every local gradient, {only}",
        "gradient": f"the job steps along the gradient over all data of a node, {only}",
    }
