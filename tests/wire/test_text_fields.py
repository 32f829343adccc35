"""Heads carry no text that could not be stored or shown, in any field of any message."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_args

import pytest

from shoal.core.errors import InvalidPayload
from shoal.core.protocol.message import Message, TaskFailed
from shoal.jobs.spec import check_job
from shoal.validation import strict_json
from shoal.validation.strict_json import sanitize, text_flaw
from shoal.wire import codec

KINDS = get_args(Message)
BAD = ("\ud800", "a\udfffb", "\0", "a\0")


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
@pytest.mark.parametrize("bad", ["\\ud800", "\\u0000"])
def test_no_field_of_a_message_takes_one(kind: type, bad: str) -> None:
    for field in fields(kind):
        values: dict[str, Any] = {"shoal": 1, "job": "main", "type": kind.type_name, field.name: "BAD"}
        head = json.dumps(values).replace("BAD", bad).encode()
        with pytest.raises(InvalidPayload, match="a text with"):
            codec.decode(len(head).to_bytes(4, "big") + head)


def test_what_a_node_says_is_mended_before_it_goes() -> None:
    frame = codec.Frame("main", TaskFailed("a", (1, 2), "caf\udce9\0 broke", traceback="x\0"))
    found = codec.decode(codec.encode(frame)).message
    assert found == TaskFailed("a", (1, 2), "caf\ufffd\ufffd broke", traceback="x\ufffd")


@pytest.mark.parametrize("bad", BAD)
def test_a_flaw_is_found_however_deep(bad: str) -> None:
    for value in (bad, [bad], {"a": {"b": (1, bad)}}, {bad: 1}):
        assert text_flaw(value)
        assert not text_flaw(sanitize(value))
        assert json.dumps(sanitize(value), ensure_ascii=False).encode()


@pytest.mark.parametrize("good", ["", "plain", "café 😀", "\n\t", {"a": [1, None, 2.0, True]}])
def test_whole_texts_are_left_alone(good: Any) -> None:
    assert text_flaw(good) == ""
    assert sanitize(good) == good
    assert strict_json.loads(json.dumps(good).encode()) == good


def test_a_job_file_says_where_it_is() -> None:
    found = check_job({"name": "main", "title": "a\0b"})
    assert [one.place for one in found] == [("title",)]
    assert "NUL" in found[0].text
    assert check_job({"name": "main", "options": {"x": "\ud800"}})[0].place == ("options",)
