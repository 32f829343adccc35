"""docs/how-to/exits.md and examples/device_edge_cloud do what they say.

tests/cli/test_new.py runs the example's commands.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import shoal
from shoal.jobs.spec import load_job
from shoal.learn.exits import ExitNetwork, exit_learner
from shoal.learn.loading import load_learner
from tests.conventions.sources import ROOT
from tests.docs.test_documents import blocks

PAGE = ROOT / "docs" / "how-to" / "exits.md"
EXAMPLE = ROOT / "examples" / "device_edge_cloud"


def test_the_documents_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in blocks(PAGE, "python"):
        exec(block, names)
    said = capsys.readouterr().out.splitlines()
    assert names["outcome"].accuracy > 0.8
    assert names["outcome"].fractions[0] > 0.3
    assert len(said) == 3
    assert names["found"].sent > int(said[2]) > 0


def test_every_parameter_is_documented() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE)
    found = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    own = {*inspect.signature(ExitNetwork).parameters, *inspect.signature(exit_learner).parameters}
    assert own - found <= {"model", "train", "test", "options"}


def test_the_sites_of_the_example_train_one_network() -> None:
    job = load_job(EXAMPLE / "job.toml").model_copy(update={"rounds": 1})
    learners = [load_learner(f"{EXAMPLE}/learner.py:learner", {"part": str(part)}) for part in range(3)]
    result = shoal.simulate(job, learners)
    assert result.state == "done"
    found = [result.metrics[f"eval/accuracy_{level}"] for level in ("device", "edge", "cloud")]
    assert min(found) > 0.6
