"""Log lines that are kept for a moment: whole, bounded, without secrets; lines beyond the limit are counted."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
import structlog

from shoal.runtime.observability import logs
from shoal.runtime.observability.log_buffer import FIELDS_BYTES_MAX, TEXT_CHARACTERS_MAX, LogBuffer
from shoal.validation.strict_json import text_flaw


@pytest.fixture
def lines() -> Iterator[LogBuffer]:
    """Attached to a log that is set up as a process's is."""
    before = structlog.get_config()
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    logs.configure("edge", level="debug", form="console", stream=io.StringIO(), node="a")
    made = LogBuffer(logging.INFO, without=("own.",), lines_max=5)
    root.addHandler(made)
    yield made
    root.handlers, root.level = handlers, level
    structlog.contextvars.clear_contextvars()
    structlog.configure(**before)


def test_a_line_with_all_that_belongs_to_it(lines: LogBuffer) -> None:
    structlog.get_logger("x").bind(job="digits").warning("task failed", round=3, why="no data", seconds=1.5)
    ((line,), dropped) = lines.take(10)
    assert (line.number, line.level, line.text, line.job, line.round) == (1, 30, "task failed", "digits", 3)
    assert line.fields == {"why": "no data", "seconds": "1.5"}
    assert dropped == 0
    assert lines.take(10) == ([], 0)


def test_other_libraries_lines_and_their_errors(lines: LogBuffer) -> None:
    try:
        raise ValueError("no data")  # noqa: TRY301 - for its traceback
    except ValueError:
        logging.getLogger("learner").exception("epoch %d went wrong", 4)
    ((line,), _) = lines.take(10)
    assert line.text.startswith("epoch 4 went wrong\nTraceback")
    assert line.text.endswith("ValueError: no data")
    assert line.fields == {"logger": "learner"}


def test_nothing_secret_is_kept(lines: LogBuffer) -> None:
    structlog.get_logger("x").error("with sht_abcdefgh", token="geheim", header="Bearer abc.def")
    logging.getLogger("learner").error("posting with Bearer abc.def")
    said = str([(line.text, line.fields) for line in lines.take(10)[0]])
    for secret in ("abcdefgh", "geheim", "abc.def"):
        assert secret not in said
    assert "[redacted]" in said


def test_every_line_can_be_sent_and_shown(lines: LogBuffer) -> None:
    """A coordinator would refuse all the lines of a request for one with half a character."""
    structlog.get_logger("x").bind(job="job\0").warning("no caf\udce9\0", path="/caf\udce9", **{"nul\0": ["a\0b"]})
    ((line,), _) = lines.take(10)
    assert (line.text, line.job, line.fields["path"]) == ("no caf\ufffd", "job", "/caf\ufffd")
    assert text_flaw([line.text, line.job, line.fields]) == ""


def test_the_oldest_give_way_and_are_counted(lines: LogBuffer) -> None:
    for number in range(7):
        logging.getLogger("x").warning("%d", number)
    taken, dropped = lines.take(3)
    assert [line.text for line in taken] == ["2", "3", "4"]
    assert [line.number for line in taken] == [3, 4, 5]
    assert dropped == 2
    lines.lose(3)
    assert lines.take(10)[1] == 3


def test_levels_and_loggers_that_are_left_out(lines: LogBuffer) -> None:
    logging.getLogger("x").debug("too low")
    logging.getLogger("own.thread").error("would call for itself")
    assert lines.take(10) == ([], 0)


def test_what_is_long_is_cut_and_a_batch_has_a_size(lines: LogBuffer) -> None:
    structlog.get_logger("x").info("e" * 9000, **{f"f{n}": "v" * 900 for n in range(9)})
    logging.getLogger("x").info("next")
    ((line,), _) = lines.take(10, 100)
    assert len(line.text) == TEXT_CHARACTERS_MAX
    assert 0 < len(str(line.fields)) <= FIELDS_BYTES_MAX
    assert [one.text for one in lines.take(10)[0]] == ["next"]


def test_what_cannot_be_written_ends_nobody(lines: LogBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logging.getLogger("x").warning("%d", "no number")
    logging.getLogger("x").warning("after")
    assert [line.text for line in lines.take(10)[0]] == ["after"]
