"""The notebook of the examples: its cells run in an event loop, as in Jupyter."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conventions.sources import ROOT

FOLDER = ROOT / "examples" / "notebook"


def test_its_cells_run_and_three_nodes_learn_more_than_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.chdir(FOLDER)
    from run_cells import run

    names: dict[str, Any] = asyncio.run(run("digits.ipynb", (FOLDER / "digits.ipynb").read_text(encoding="utf-8")))
    assert names["node"].result.accuracy > max(0.8, names["alone"])
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("one node by itself: ")
    assert len(shown) == 1 + len(names["node"].result.versions)
