"""The diffs of docs/how-to/own-loop.md: the script before and after runs, and few lines differ."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conventions.sources import ROOT

DIFFS = re.findall(r"```diff\n(.*?)```", (ROOT / "docs/how-to/own-loop.md").read_text(encoding="utf-8"), re.DOTALL)
CHANGED_MAX = 6
SIMULATED = """
import warnings
warnings.simplefilter("ignore")
import shoal
def join(url, *, token_file):
    return nodes
nodes = shoal.simulated({"name": "docs", "rounds": 2, "algorithm": {"name": "fedavg", "epochs": 2}}, nodes=2)
shoal.join = join
"""
RESULT = (
    "\nprint(nodes.result.state, [version.reports for version in nodes.result.versions], sorted(nodes.result.model))"
)


def side(diff: str, sign: str) -> str:
    """The text before ("-") or after ("+") a diff."""
    return "\n".join(line[1:] for line in diff.splitlines() if line[:1] in (" ", "", sign))


def run(code: str, folder: Path) -> str:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "edge_client")]),
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def in_cells(code: str) -> str:
    """Return code that runs the cells of a script one after the other in an event loop, as a notebook does."""
    cells = [cell for cell in re.split(r"^# %%.*$", code, flags=re.MULTILINE) if cell.strip()]
    return f"import asyncio\nasync def run():\n    for cell in {cells!r}: exec(cell, globals())\nasyncio.run(run())"


def test_there_are_four() -> None:
    assert ["lightning" in diff for diff in DIFFS] == [False, True, False, False]
    assert ["transformers" in diff for diff in DIFFS] == [False, False, True, False]
    assert ["# %%" in diff for diff in DIFFS] == [False, False, False, True]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("diff", DIFFS, ids=["torch", "lightning", "transformers", "notebook"])
def test_a_script_becomes_a_node_by_a_few_lines(diff: str, tmp_path: Path) -> None:
    assert len(re.findall(r"^\+", diff, re.MULTILINE)) <= CHANGED_MAX
    assert len(re.findall(r"^-", diff, re.MULTILINE)) <= CHANGED_MAX
    before, after = side(diff, "-"), side(diff, "+")
    after = in_cells(after) if "# %%" in diff else after
    said = run(f"exec({before!r}, {{}})\n{SIMULATED}{after}{RESULT}", tmp_path)
    assert said.startswith("done [0, 2, 2] [")
    assert ("lora_A" in said) == ("peft" in diff)
    assert "embeddings" not in said
