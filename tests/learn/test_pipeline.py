"""A model whose stages are at several processes, against one process that trains all of it."""

from __future__ import annotations

import pytest

from shoal.core.errors import InvalidJob
from shoal.learn import Pipeline
from shoal.learn.split.cut_choice import PieceCost, balanced_cuts
from tests.learn.pipeline_group import CASES
from tests.learn.site_group import SIZE, Found, assert_equal_alone, results


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    return results(tmp_path_factory.mktemp("pipeline"), "tests.learn.pipeline_group")


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("case", CASES)
def test_the_model_does_not_depend_on_the_number_of_stages(case: str, together: dict[str, Found]) -> None:
    assert_equal_alone(CASES[case], together[case])


@pytest.mark.usefixtures("processes")
def test_bytes_between_stages_are_counted(together: dict[str, Found]) -> None:
    activations = 18 * 8 * 8  # 14 rows in 6 micro-batches are padded to 18, of 8 numbers of 8 bytes
    assert list(together["measured"]["bytes"]) == [activations, 2 * activations, activations]
    assert all(together["measured"]["busy"])


@pytest.mark.usefixtures("processes")
def test_a_stage_takes_the_memory_of_its_own_parameters(together: dict[str, Found]) -> None:
    first, inner, last = 6 * 8 + 8, 8 * 8 + 8, 8 * 2 + 2
    parameters = [first, inner, inner + last]
    assert list(together["measured"]["memory"]) == [3 * 8 * one for one in parameters]  # weights, gradients, momentum


@pytest.mark.usefixtures("processes")
def test_pipelines_that_cannot_be_are_refused(together: dict[str, Found]) -> None:
    texts = {name: str(text) for name, text in together["refusals"].items()}
    only = "and each process of a pipeline trains its stage only"
    assert texts == {
        "unknown": "no module 'absent' to cut at",
        "number": f"{SIZE} cuts make {SIZE + 1} stages, and this node has {SIZE} processes",
        "few": f"1 micro-batches for a pipeline of {SIZE} stages",
        "no chain": "a cut inside a module that is not a chain: the model is a Bilinear",
        "frozen": "stage 0 has no parameter to train",
        "too few modules": f"the model has no {SIZE} parts with a layer to train each",
        "tied": "two stages share the tensor 1.bias",
        "fp16": "fp16 with parallel=Pipeline",
        "correction": f"the job corrects every local gradient, {only}",
        "gradient": f"the job steps along the gradient over all data of a node, {only}",
        "state": f"the job keeps the local optimizer's state, {only}",
        "algorithm": f"fedprox corrects every local gradient, {only}",
    }


def test_the_slowest_of_balanced_parts_takes_least_time() -> None:
    seconds = (4.0, 1.0, 1.0, 1.0, 3.5)
    pieces = [PieceCost(str(number), one, 0, number != 2) for number, one in enumerate(seconds)]
    assert balanced_cuts(pieces, 1) == ()
    assert balanced_cuts(pieces, 2) == ("2",)
    assert balanced_cuts(pieces, 3) == ("1", "4")
    assert balanced_cuts(pieces, 4) == ("1", "2", "4")
    with pytest.raises(InvalidJob, match="no 5 parts"):
        balanced_cuts(pieces, 5)


def test_settings_of_a_pipeline_are_checked() -> None:
    with pytest.raises(InvalidJob, match="microbatches is 0"):
        Pipeline(microbatches=0)
    with pytest.raises(InvalidJob, match="cuts is '4'"):
        Pipeline("4")  # type: ignore[arg-type]
