"""Tables keep their lines whole in a narrow terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from shoal.cli.terminal.text import table


def lines(part: RenderableType, columns: int) -> list[str]:
    """Return a table at that width, without the line below the head."""
    console = Console(file=io.StringIO(), width=columns, color_system=None)
    with console.capture() as captured:
        console.print(part)
    return [line.rstrip() for line in captured.get().splitlines() if "─" not in line]


def test_columns_that_can_be_spared_go_the_last_first() -> None:
    made = table("job", "best", "up", "algorithm", right=["best"], spare=("best", "algorithm"))
    made.add_row("digits", "[bold]98 %[/]", "19 kB", "fedavg / rounds")
    assert lines(made, 80)[1].split("   ") == ["digits", "98 %", "19 kB", "fedavg / rounds"]
    assert lines(made, 24)[1].split("   ") == ["digits", "98 %", "19 kB"]
    assert lines(made, 16)[1].split("   ") == ["digits", "19 kB"]
    assert len(lines(made, 10)) > 2, "what doesn't fit in any form is folded, not cut"


def test_prose_is_broken_before_anything_is_left_out() -> None:
    made = table("at", "what", "more", prose=["what"], spare=["more"])
    made.add_row("10:00:00", "round 3 opens with 4 of 4 nodes", "x")
    assert lines(made, 50)[1] == "10:00:00   round 3 opens with 4 of 4 nodes   x"
    assert lines(made, 43)[1:] == ["10:00:00   round 3 opens with 4 of 4   x", "           nodes"]
    assert lines(made, 32)[0].split() == ["at", "what"]


@pytest.mark.parametrize("columns", [44, 64])
def test_a_table_that_turns(columns: int) -> None:
    made = table("run", "protocol", "final", "best", "bytes to 95 %", right=["final"], turns=True)
    made.add_row("first", "fedavg / rounds", "97.1 %", "97.3 %", "123 kB")
    made.add_row("second", "dynamic", "96.0 %", "96.5 %", "45 kB")
    shown = [line.split() for line in lines(made, columns)]
    if columns == 64:
        assert shown[2] == ["second", "dynamic", "96.0", "%", "96.5", "%", "45", "kB"]
    else:
        assert shown[0] == ["run", "first", "second"]
        assert shown[4] == ["bytes", "to", "95", "%", "123", "kB", "45", "kB"]
