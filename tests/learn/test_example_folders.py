"""The examples without torch and docs/how-to/without-torch.md do what they say.

tests/cli/test_new.py runs all examples.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.jobs.spec import load_job
from shoal.learn import ArrayLearner, load_learner
from tests.conventions.sources import ROOT

EXAMPLES = {"sklearn_csv": 0.93, "numpy_model": 0.94}
TEXT = (ROOT / "docs" / "how-to" / "without-torch.md").read_text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_learns(name: str) -> None:
    folder = ROOT / "examples" / name
    learners = [load_learner(f"{folder}/learner.py:learner", {"part": str(part)}) for part in range(4)]
    result = shoal.simulate(load_job(folder / "job.toml"), learners)
    assert result.versions[-1].metrics["eval/accuracy"] >= EXAMPLES[name]


def test_the_documents_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    own, loop, statistics, estimator, tables, _ = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {}
    exec(own, names)
    assert np.allclose(names["learner"].parameters()["w"], [1, -2, 3], atol=0.05)
    exec(loop, names)
    assert np.allclose(names["learner"].parameters()["w"], [1, -2, 3], atol=0.05)
    capsys.readouterr()
    exec(statistics, names)
    assert f"# {capsys.readouterr().out}".strip() in statistics
    exec(estimator, names)
    assert names["learner"].evaluate()["eval/accuracy"] > 0.9
    capsys.readouterr()
    exec(tables, names)
    assert f"# {capsys.readouterr().out}".strip() in tables


def test_every_parameter_is_documented() -> None:
    rows = re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE)
    found = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(inspect.signature(ArrayLearner).parameters) <= found
