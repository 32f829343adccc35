"""The document and the example of vertical data do what they say."""

import re
from typing import Any

import pytest

from examples.vertical import main
from tests.conventions.sources import ROOT

TEXT = (ROOT / "docs/how-to/vertical.md").read_text()


@pytest.mark.parametrize(
    "code", re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL), ids=["points", "salted", "training"]
)
def test_the_documents_code_prints_what_it_says(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(code, names)
    assert f"# {capsys.readouterr().out}".strip() in code


def test_the_example_learns(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    said = capsys.readouterr().out
    assert "1400 rows in common" in said
    assert float(said.split()[-1]) > 0.8
