"""docs/how-to/growing.md does what it says."""

from __future__ import annotations

import tomllib
from typing import Any

import shoal
from shoal.jobs.spec import parse_job
from tests.conventions.sources import ROOT
from tests.docs.test_documents import blocks

PAGE = ROOT / "docs" / "how-to" / "growing.md"


def test_the_documents_job_grows_twice() -> None:
    names: dict[str, Any] = {}
    (code,), (job,) = blocks(PAGE, "python"), blocks(PAGE, "toml")
    exec(code, names)
    result = shoal.simulate(parse_job(tomllib.loads(job)), [names["learner"]() for _ in range(2)], progress=False)
    stages = [one.number for one in result.versions if one.why.startswith("stage ")]
    assert stages[0] == 3
    assert len(stages) == 2
    assert result.versions[-1].number == 11
