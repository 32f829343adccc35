"""The project keeps its conventions, as far as it has come: no number of `limits.toml` may rise.

A number that has fallen is lowered there too, until it is the target of `report.py`.
"""

from pathlib import Path

import pytest

from tests.conventions.report import RULES, limits, main, table
from tests.conventions.sources import ROOT, plant


@pytest.mark.parametrize("name", RULES)
def test_a_convention_is_kept(name: str) -> None:
    rule = RULES[name]
    findings = rule.find(ROOT)
    number, limit = rule.number(findings), limits()[name]
    worst = "\n".join(map(str, rule.offenders(findings)[:40]))
    assert number <= limit, f"{rule.title}: {number}, at most {limit}\n{worst}"


def test_every_rule_has_a_limit() -> None:
    assert list(limits()) == list(RULES)
    assert all(limits()[name] >= rule.target for name, rule in RULES.items())


def test_the_report_names_offenders_and_unknown_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["function-lines", "shoal/core"]) == 0
    assert " of " in capsys.readouterr().out
    assert main(["prettiness"]) == 2
    assert "there are: code-lines" in capsys.readouterr().err


def test_the_table_has_a_row_for_each_rule_and_package(tmp_path: Path) -> None:
    shown = table(plant(tmp_path, {"shoal/one.py": "def one() -> int:\n    return 1\n"}))
    assert all(rule.title in shown for rule in RULES.values())
    assert "shoal_peer" in shown
    assert "median function length" in shown
