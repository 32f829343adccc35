"""docs/how-to/growing.md and examples/growing do what they say.

tests/cli/test_new.py runs the example's commands.
"""

from __future__ import annotations

import tomllib
from typing import Any

import shoal
from shoal.jobs.job_tables import StageTable
from shoal.jobs.spec import load_job, parse_job
from shoal.learn.loading import load_learner
from tests.conventions.sources import ROOT
from tests.docs.test_documents import blocks

PAGE = ROOT / "docs" / "how-to" / "growing.md"
EXAMPLE = ROOT / "examples" / "growing"


def test_the_documents_job_grows_twice() -> None:
    names: dict[str, Any] = {}
    (code,), (job,) = blocks(PAGE, "python"), blocks(PAGE, "toml")
    exec(code, names)
    result = shoal.simulate(parse_job(tomllib.loads(job)), [names["learner"]() for _ in range(2)], progress=False)
    stages = [one.number for one in result.versions if one.why.startswith("stage ")]
    assert stages[0] == 3
    assert len(stages) == 2
    assert result.versions[-1].number == 11


def test_the_network_of_the_example_grows_to_the_last_stage() -> None:
    job = load_job(EXAMPLE / "job.toml")
    stages = [StageTable(rounds=1), StageTable(rounds=1), StageTable()]
    assert len(job.stages) == len(stages)
    learners = [load_learner(f"{EXAMPLE}/learner.py:learner", {"part": str(part)}) for part in range(3)]
    result = shoal.simulate(job.model_copy(update={"rounds": 5, "stages": stages}), learners, progress=False)
    assert result.model.layout.shown["convolution_1.weight"] == "F32[16, 16, 3, 3]"
    assert result.metrics["eval/accuracy"] > 0.5
