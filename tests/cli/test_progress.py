"""Progress of a long command without a terminal: a line in the log now and then."""

from __future__ import annotations

import pytest

from shoal.cli.terminal import output
from shoal.cli.terminal.output import Flags, Output


class Clock:
    """Stands in for the module `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(output, "time", made)
    return made


def told(flags: Flags, clock: Clock, capsys: pytest.CaptureFixture[str], total: float | None = 40.0) -> list[str]:
    """Return a pipe's output during 100 seconds with one step each second."""
    out = Output()
    out.begin(flags)
    with out.progress("digits", total) as advance:
        for second in range(100):
            clock.now += 1.0
            advance(second / 4, f"round {second}" if second > 40 else "")
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.splitlines()


def test_a_log_gets_a_line_every_half_minute(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(Flags(), clock, capsys) == ["digits: 18%", "digits: round 59", "digits: round 89"]
    assert told(Flags(json=True), clock, capsys, None)[0] == "digits: …"


def test_what_is_soon_done_and_what_is_to_be_quiet_say_nothing(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(Flags(quiet=True), clock, capsys) == []
    clock.now = -1000.0
    out = Output()
    with out.progress("digits", None) as advance:
        clock.now += 29.0
        advance(1.0, "nearly done")
    assert capsys.readouterr().err == ""


def test_a_log_gets_the_text_and_no_markup(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    out.begin(Flags())
    with out.progress("digits [b]1", None) as advance:
        clock.now += 31.0
        advance(1.0, "[bold]91 %[/]  [dim]↑[/]257 kB")
    assert capsys.readouterr().err == "digits [b]1: 91 %  ↑257 kB\n"
