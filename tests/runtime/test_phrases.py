"""Errors as one line for people."""

from __future__ import annotations

import pytest

from shoal.runtime.task_execution import ERROR_CHARACTERS_MAX, one_line


@pytest.mark.parametrize("text", ["", "x" * 5000, "a\x00b\x1b[31m\r\n\tc", "\u202egone"])
def test_errors_fit_into_one_line(text: str) -> None:
    line = one_line(RuntimeError(text))
    assert line.isprintable()
    assert 0 < len(line) <= ERROR_CHARACTERS_MAX
