"""Several processes that train one model, against one process that trains it alone."""

from __future__ import annotations

import pytest

from tests.learn.site_group import CASES, Found, assert_equal_alone, results

pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    return results(tmp_path_factory.mktemp("site"), "tests.learn.site_group")


@pytest.mark.parametrize("case", CASES)
def test_the_model_does_not_depend_on_the_number_of_processes(case: str, together: dict[str, Found]) -> None:
    assert_equal_alone(CASES[case], together[case])


def test_all_ranks_have_the_same_statistics(together: dict[str, Found]) -> None:
    assert together["alike"]["distance"] == 0.0


def test_a_withdrawn_task_stops_at_the_same_step_at_all_ranks(together: dict[str, Found]) -> None:
    assert together["withdrawn"]["steps"] == 3.0


def test_batches_that_cannot_be_divided_are_refused(together: dict[str, Found]) -> None:
    text = str(together["refused"]["text"])
    assert text == "a batch of 16 examples holds str, which cannot be divided among the processes of this node"


def test_averages_begin_before_all_gradients_are_known(together: dict[str, Found]) -> None:
    began = list(together["overlapped"]["began"])
    assert len(began) > 1
    assert began == sorted(began)
    assert began[0] < 4
