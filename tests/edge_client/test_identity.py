"""A node's identity, in files that only its owner reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shoal.core.errors import Refused, StorageFailed
from shoal.runtime.http.coordinator_url import parse
from shoal_edge_client.identity import ERRORS_KEPT, Identity, StateFolder

HERE = parse("http://127.0.0.1:8080")
ME = Identity("http://127.0.0.1:8080", "a", "shn_secret")


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path / "state", HERE)


def test_a_credential_is_kept_for_its_owner_alone(state: StateFolder) -> None:
    old = os.umask(0o002)
    try:
        with state:
            assert state.identity() is None
            state.save_identity(ME)
            assert state.identity() == ME
    finally:
        os.umask(old)
    assert (state.folder / "credential.json").stat().st_mode & 0o777 == 0o600
    assert state.folder.stat().st_mode & 0o777 == 0o700


def test_a_credential_that_others_can_read_is_closed(state: StateFolder) -> None:
    with state:
        state.save_identity(ME)
        (state.folder / "credential.json").chmod(0o644)
        assert state.identity() == ME
    assert (state.folder / "credential.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"name": "a"}', '{"url": "x", "name": "a", "credential": "y", "more": 1}']
)
def test_a_damaged_credential_is_named(state: StateFolder, text: str) -> None:
    with state:
        (state.folder / "credential.json").write_text(text)
        with pytest.raises(StorageFailed, match=r"credential\.json") as damaged:
            state.identity()
    assert "enrol again" in damaged.value.hint


def test_the_secret_does_not_show(state: StateFolder) -> None:
    assert "secret" not in repr(ME)
    assert "secret" not in f"{[ME]}"


def test_each_coordinator_has_its_own(tmp_path: Path) -> None:
    other = StateFolder(tmp_path, parse("http://127.0.0.1:9090"))
    with StateFolder(tmp_path, HERE) as here, other:
        here.save_identity(ME)
        assert other.identity() is None


def test_one_process_at_a_time(state: StateFolder, tmp_path: Path) -> None:
    with state:
        with pytest.raises(Refused) as locked, StateFolder(tmp_path / "state", HERE):
            pass
        assert locked.value.code == "state.locked"
    with StateFolder(tmp_path / "state", HERE):
        pass


def test_an_enrolment_keeps_its_key_until_it_has_succeeded(state: StateFolder) -> None:
    with state:
        key = state.enrolment_key("sht_one")
        assert state.enrolment_key("sht_one") == key
        assert state.enrolment_key("sht_two") != key
        again = state.enrolment_key("sht_two")
        state.save_identity(ME)
        assert state.enrolment_key("sht_two") != again
    assert "sht_two" not in (state.folder / "enrolment_key.json").read_text()
    assert set(json.loads((state.folder / "enrolment_key.json").read_text())) == {"key", "token_sha256"}


def test_jobs_are_found_again(state: StateFolder) -> None:
    with state:
        assert state.jobs() == []
        for job in ("b", "a.1"):
            state.spool(job)
        assert state.jobs() == ["a.1", "b"]


def test_the_newest_errors_are_kept(state: StateFolder) -> None:
    with state:
        for number in range(ERRORS_KEPT + 5):
            path = state.save_traceback(f"j-1.{number}", f"error {number}")
            os.utime(path, (number, number))
        kept = sorted(int(path.stem.rpartition(".")[2]) for path in (state.folder / "errors").iterdir())
    assert kept == list(range(5, ERRORS_KEPT + 5))


def test_a_deletion_that_a_crash_interrupted_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: Path) -> None:
        raise KeyboardInterrupt

    with StateFolder(tmp_path, HERE) as state:
        spool = state.spool("digits")
        monkeypatch.setattr("shoal_edge_client.spool.shutil.rmtree", crash)
        with pytest.raises(KeyboardInterrupt):
            spool.forget()
        monkeypatch.undo()
        assert len(list((state.folder / "jobs").iterdir())) == 1
        assert state.jobs() == []
    with state:
        assert list((state.folder / "jobs").iterdir()) == []
