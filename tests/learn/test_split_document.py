"""The document and the example of split learning do what they say."""

import re
from typing import Any

import pytest

from examples.split_learning import main
from tests.conventions.sources import ROOT

TEXT = (ROOT / "docs/how-to/split-learning.md").read_text()


def test_the_documents_code_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert f"# {capsys.readouterr().out}".strip() in code


def test_the_example_learns(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    accuracy = float(capsys.readouterr().out.split()[-1])
    assert accuracy > 0.8
