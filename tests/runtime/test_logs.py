"""One log for all roles, for people and for programs, and never a credential in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import stamina
import structlog
from hypothesis import given
from hypothesis import strategies as st
from stamina.instrumentation import RetryDetails

from shoal.core.errors import StorageFailed, Unreachable
from shoal.runtime.http.retry import Backoff, attempts
from shoal.runtime.observability import logs

SECRETS = ["sho_abcdef123456", "shn_ABC-def_0123456789", "sht_zzzzzzzz", "shv_0123-viewer"]


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in [one for one in root.handlers if one not in before]:
        root.removeHandler(handler)
    root.setLevel(level)
    for name in logs._QUIET:
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_where_no_terminal_is() -> None:
    stream = io.StringIO()
    logs.configure("edge", stream=stream, node="a")
    structlog.get_logger("x").bind(job="j").warning("what happened", round=3, loss=float("nan"))
    (line,) = lines(stream)
    assert list(line)[:7] == ["at", "level", "event", "role", "node", "job", "round"]
    expected = {"level": "warning", "event": "what happened", "role": "edge", "node": "a", "job": "j", "round": 3}
    assert {name: line[name] for name in expected} == expected
    assert str(line["at"]).endswith("Z")


def test_a_sentence_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    logs.configure("edge", stream=stream)
    structlog.get_logger("x").info("what happened", job="j")
    assert "what happened" in stream.getvalue()
    assert "job=j" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
    monkeypatch.delenv("NO_COLOR")
    logs.configure("edge", stream=stream)
    structlog.get_logger("x").info("in colors")
    assert "\x1b" in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("secret", SECRETS)
def test_credentials_do_not_get_out(secret: str, form: logs.Form) -> None:
    stream = io.StringIO()
    logs.configure("edge", form=form, stream=stream)
    log, event = structlog.get_logger("x"), f"with {secret}"
    try:
        int(secret)
    except ValueError:
        log.exception(event, header=f"Bearer {secret}", deep={"a": [(secret,)]}, error=KeyError(secret))
        logging.getLogger("other").exception("they say %s", secret)
    log.info("by name", token="plain", api_token="plain", credential="plain", cookie="plain")
    log.info("bound", authorization="Bearer abc.def")
    said = stream.getvalue()
    assert secret not in said
    assert "plain" not in said
    assert "abc.def" not in said
    assert "Traceback" in said  # it was there, but for that
    assert logs.HIDDEN in said


@given(st.text(alphabet="abcXYZ019_-", min_size=4, max_size=60), st.sampled_from("onvt"), st.text(max_size=10))
def test_whatever_a_credential_is_like(rest: str, kind: str, before: str) -> None:
    text = f"{before} sh{kind}_{rest} after"
    assert f"sh{kind}_{rest}" not in logs.redact(text)
    assert logs.redact(text).endswith(f"sh{kind}_{logs.HIDDEN} after")


@pytest.mark.parametrize("text", ["shoal_thing", "the shop_window", "show", "worship"])
def test_ordinary_words_stay(text: str) -> None:
    assert logs.redact(text) == text


def test_levels_and_other_peoples_logs() -> None:
    stream = io.StringIO()
    logs.configure("edge", stream=stream, level="warning")
    structlog.get_logger("x").info("too little")
    logging.getLogger("uvicorn").info("too little")
    logging.getLogger("urllib3").warning("from urllib3")
    logs.configure("edge", stream=stream, level="info")
    logging.getLogger("urllib3").info("each request")
    logging.getLogger("uvicorn").info("started on %s", "8080")
    assert [line["event"] for line in lines(stream)] == ["from urllib3", "started on 8080"]


def test_setting_it_up_twice_does_not_double_it() -> None:
    stream = io.StringIO()
    logs.configure("edge", stream=stream, node="a")
    logs.configure("coordinator", stream=stream)
    structlog.get_logger("x").info("once")
    (line,) = lines(stream)
    assert (line["role"], "node" in line) == ("coordinator", False)


def test_tries_are_told_in_words() -> None:
    stream = io.StringIO()
    logs.configure("edge", stream=stream)
    assert stamina.is_active()
    tried = 0
    for attempt in attempts(Backoff(first_s=0.001, most_s=0.001)):
        with attempt:
            tried += 1
            if tried < 3:
                raise Unreachable("nobody's there; sht_abcdefgh")
    first, second = lines(stream)
    assert (first["tries"], second["tries"]) == (1, 2)
    assert first["why"] == "nobody's there; sht_[redacted]"
    assert str(first["event"]).startswith("trying again in ")
    assert not {"args", "kwargs", "callable"} & set(first)


@pytest.mark.parametrize(
    ("error", "waited_s", "level"),
    [
        (StorageFailed("version 7 is not committed yet", code="storage.pending"), 0.0, "debug"),
        (StorageFailed("version 7 is not committed yet", code="storage.pending"), 5.0, "warning"),
        (StorageFailed("no space left", code="storage.full"), 0.0, "warning"),
        (ValueError("no error of shoal"), 0.0, "warning"),
    ],
)
def test_a_usual_wait_is_a_warning_only_if_it_lasts(error: Exception, waited_s: float, level: str) -> None:
    stream = io.StringIO()
    logs.configure("edge", stream=stream, level="debug")
    logs.log_retry(RetryDetails("call", (), {}, 1, 2.0, waited_s, error))
    (line,) = lines(stream)
    assert (line["level"], line["event"], line["tries"]) == (level, "trying again in 2 s", 1)
    assert line["why"] == error.args[0]


@pytest.mark.parametrize(
    "hidden",
    [
        "sho_ab\0cdefgh",
        "\0sho_abcdefgh",
        "s\0ho_abcdefgh",
        "sho_abcd\u200befgh",
        "sho_ab\x1b[0mcdefgh",
        "x_sho_abcdefgh",
    ],
)
def test_a_character_that_nobody_sees_hides_no_credential(hidden: str) -> None:
    said = logs.redact(f"by {hidden} it was")
    assert said.endswith(f"sho_{logs.HIDDEN} it was")
    assert "efgh" not in said
    stream = io.StringIO()
    logs.configure("edge", stream=stream)
    logging.getLogger("elsewhere").warning("by %s it was", hidden)
    assert "efgh" not in stream.getvalue()
