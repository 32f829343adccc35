"""examples/javascript: a job of two nodes in Node.js."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

import shoal
import shoal_dashboard
from tests.conventions.sources import ROOT
from tests.support.coordinator import OPERATOR, inside


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js")
@pytest.mark.skipif(shoal_dashboard.assets() is None, reason="the dashboard is not built: python dev.py dashboard")
def test_two_nodes_learn(tmp_path: Path) -> None:
    script = ROOT / "examples/javascript/train.mjs"
    with inside(tmp_path / "data") as where, ExitStack() as stack:
        for name in ("tablet", "laptop"):
            command = ["node", str(script), where.url, where.token(), name]
            stack.callback(stack.enter_context(subprocess.Popen(command)).terminate)
        with shoal.connect(where.url, OPERATOR) as client:
            job = client.run(ROOT / "examples/javascript/job.toml").wait(60, progress=False)
            assert job.metrics["eval/accuracy"] > 0.9
            assert sorted(job.model()) == ["w"]
            assert client.failures() == []
