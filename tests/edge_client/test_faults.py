"""The network loses, doubles and garbles one thing at a time: the job still ends, with every update counted once."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from shoal.core.errors import NotAllowed, Refused, Unreachable
from tests.edge_client.conftest import LARGE, PLAN, Place
from tests.support.edge_coordinator import Coordinator, serving
from tests.support.http_servers import Asked, Said
from tests.support.learners import VectorLearner
from tests.support.waiting import PATIENCE_S

ENDPOINTS = [
    ("POST", "/enrol"),
    ("POST", "/hello"),
    ("GET", "/work"),
    ("GET", "/jobs/j$"),
    ("POST", "/jobs/j/reports"),
]
FAULTS = list(itertools.product(ENDPOINTS, ("lose-request", "lose-response", "twice", "503", "empty")))
"""All statuses that pass are handled as 503 is: tests/runtime/test_retry.py."""
BODIES = [("GET", "/blobs/"), ("PUT", "/blobs/")]
COUNTED = 5  # the initial model, three rounds, one evaluation


@cache
def undisturbed(size: int) -> str:
    """The digest of the final model without any fault."""
    with TemporaryDirectory() as folder:
        coordinator = Coordinator(Path(folder) / "c", {"j": PLAN})
        with serving(coordinator) as url:
            Place(coordinator, url, Path(folder)).join(VectorLearner(size))
        return coordinator.versions["j"][-1].model.digest


def check(place: Place, size: int) -> None:
    """Nothing was lost and nothing counted twice."""
    coordinator = place.coordinator
    assert len(coordinator.counted) == len(set(coordinator.counted)) == COUNTED
    assert [version.number for version in coordinator.versions["j"]] == [0, 1, 2, 3]
    assert coordinator.versions["j"][-1].model.digest == undisturbed(size)
    assert coordinator.failed == []


@pytest.mark.parametrize(("endpoint", "kind"), FAULTS)
def test_a_fault_at_an_endpoint(place: Place, endpoint: tuple[str, str], kind: str) -> None:
    method, pattern = endpoint
    fault = place.coordinator.plant(kind, method, pattern)
    assert place.join() is True
    assert fault.hit.is_set()
    check(place, 8)


@pytest.mark.parametrize("kind", ["lose-request", "lose-response", "twice", "503", "empty"])
@pytest.mark.parametrize(("method", "pattern"), [*BODIES, ("POST", "/jobs/j/reports")])
def test_a_fault_at_a_large_body(place: Place, method: str, pattern: str, kind: str) -> None:
    fault = place.coordinator.plant(kind, method, pattern)
    assert place.join(VectorLearner(LARGE)) is True
    assert fault.hit.is_set()
    check(place, LARGE)


@pytest.mark.parametrize(("method", "pattern"), [("GET", "/work"), ("POST", "/jobs/j/reports")])
def test_many_lost_answers_in_a_row(place: Place, method: str, pattern: str) -> None:
    faults = [place.coordinator.plant("lose-response", method, pattern) for _ in range(COUNTED)]
    assert place.join() is True
    assert all(fault.hit.is_set() for fault in faults)
    check(place, 8)


def test_retry_after_is_obeyed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    pauses = []
    real = asyncio.sleep

    async def sleep(seconds: float, result: object = None) -> object:
        pauses.append(seconds)
        return await real(min(seconds, 0.05), result)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    place.coordinator.plant("503", "POST", "/jobs/j/reports", retry_after="7")
    assert place.join() is True
    assert [round(pause) for pause in pauses if pause >= 7.0] == [7]
    check(place, 8)


@pytest.mark.parametrize(("asked", "obeyed"), [("7.25", [7.25]), ("1e9", []), ("-7", []), ("86400", [300.0])])
def test_a_pause_is_obeyed_within_bounds(
    place: Place, monkeypatch: pytest.MonkeyPatch, asked: str, obeyed: list[float]
) -> None:
    import asyncio

    pauses = []
    real = asyncio.sleep

    async def sleep(seconds: float, result: object = None) -> object:
        pauses.append(seconds)
        return await real(min(seconds, 0.05), result)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    fault = place.coordinator.plant("pause", "GET", "/work", pause=asked)
    assert place.join() is True
    assert fault.hit.is_set()
    assert [pause for pause in pauses if pause >= 7.0] == obeyed
    check(place, 8)


def test_who_pauses_can_leave_at_once(place: Place) -> None:
    fault = place.coordinator.plant("pause", "GET", "/work", pause="250")
    node = place.start(VectorLearner())
    assert fault.hit.wait(PATIENCE_S)
    node.leave()
    assert node.end() is False


def test_a_refused_report_becomes_a_failure(place: Place) -> None:
    coordinator = place.coordinator
    coordinator.plant("422", "POST", "/jobs/j/reports", code="payload.header")
    assert place.join() is True
    assert coordinator.failed == ["report refused: planted"]
    assert len(coordinator.counted) == COUNTED  # the task was asked again, and done


def test_a_report_on_a_foreign_order_is_dropped(place: Place) -> None:
    coordinator = place.coordinator
    fault = coordinator.plant("409", "POST", "/jobs/j/reports", code="task.foreign")
    node = place.start(VectorLearner())
    assert fault.hit.wait(PATIENCE_S)
    # Nothing stands in the way of the task that does stand: it is done again after a restart of the node.
    node.leave()
    assert node.end() is False
    assert coordinator.failed == []
    assert place.join() is True
    check(place, 8)


def test_a_body_that_the_coordinator_lost_is_sent_again(place: Place) -> None:
    coordinator = place.coordinator
    coordinator.plant("409", "POST", "/jobs/j/reports", code="blob.missing")
    assert place.join(VectorLearner(LARGE)) is True
    check(place, LARGE)


def test_a_broken_upload_is_resumed(place: Place) -> None:
    coordinator = place.coordinator
    fault = coordinator.plant("cut-request", "PUT", "/blobs/")
    assert place.join(VectorLearner(LARGE)) is True
    assert fault.hit.is_set()
    check(place, LARGE)
    body = coordinator.versions["j"][-1].model.nbytes
    assert coordinator.bytes_in < 4 * body + body // 2 + 20_000  # four bodies, one of them in two halves


def test_a_broken_download_is_resumed(place: Place) -> None:
    coordinator = place.coordinator
    fault = coordinator.plant("cut", "GET", "/blobs/")
    assert place.join(VectorLearner(LARGE)) is True
    assert fault.hit.is_set()
    check(place, LARGE)


def test_a_body_damaged_on_its_way_is_fetched_again(place: Place) -> None:
    coordinator = place.coordinator
    coordinator.plant("corrupt", "GET", "/blobs/")
    assert place.join(VectorLearner(LARGE)) is True
    check(place, LARGE)


def test_a_body_that_always_comes_damaged_fails_its_order(place: Place) -> None:
    coordinator = place.coordinator
    for _ in range(3):
        coordinator.plant("corrupt", "GET", "/blobs/")
    assert place.join(VectorLearner(LARGE)) is True
    assert len(coordinator.failed) == 1
    assert "the bytes that came are" in coordinator.failed[0]
    assert len(coordinator.counted) == COUNTED


def test_a_small_body_damaged_on_its_way_is_polled_again(place: Place) -> None:
    coordinator = place.coordinator
    coordinator.wait(lambda: True)
    node = place.start(VectorLearner(), jobs=["j"])
    coordinator.wait(lambda: coordinator.requests["GET /work"] >= 1)
    fault = coordinator.plant("corrupt", "GET", "/work")
    assert node.end() is True
    assert fault.hit.is_set()
    check(place, 8)


def test_a_proxy_is_not_taken_for_the_coordinator(place: Place) -> None:
    """A 404 or 401 without the protocol's header neither discards the report nor ends the node."""
    coordinator = place.coordinator
    for status in ("404", "401", "403", "400"):
        coordinator.plant(f"{status}", "POST", "/jobs/j/reports").kind = f"foreign-{status}"
    assert place.join() is True
    check(place, 8)


def test_a_revoked_credential_ends_the_node(place: Place) -> None:
    coordinator = place.coordinator
    hold = place.folder / "hold"
    hold.touch()
    node = place.start(VectorLearner(hold=hold))
    coordinator.wait(lambda: coordinator.beats)
    with coordinator.changed:
        coordinator.nodes.clear()
    assert isinstance(node.end(), NotAllowed)


def test_a_wrong_token_is_refused(place: Place) -> None:
    with pytest.raises(NotAllowed, match="token is unknown") as refused:
        place.join(token="sht_wrong")
    assert refused.value.code == "token.invalid"


def test_no_token_and_no_credential(place: Place) -> None:
    with pytest.raises(NotAllowed, match="not known") as refused:
        place.join(token="")
    assert "shoal token" in refused.value.hint


def test_an_unknown_job_is_named(place: Place) -> None:
    with pytest.raises(Refused, match="no job of that name"):
        place.join(jobs=["other"])


def test_the_credential_is_used_again(place: Place) -> None:
    assert place.join() is True
    assert place.join(token="") is True
    assert place.coordinator.requests["POST /enrol"] == 1


def test_an_old_credential_gives_way_to_a_new_token(place: Place) -> None:
    assert place.join() is True
    place.coordinator.nodes.clear()
    place.coordinator.tokens["sht_two"] = ""
    assert place.join(token="sht_two") is True
    assert place.coordinator.requests["POST /enrol"] == 2


def test_giving_up_on_a_coordinator_that_is_not_there(place: Place) -> None:
    with pytest.raises(Unreachable, match="cannot be reached"):
        place.join(url="http://127.0.0.1:9", coordinator_timeout_s=0.3)


def test_a_node_that_has_never_enrolled_says_so_and_gives_up_soon(place: Place) -> None:
    """One that is known goes on for ever by the same settings: its coordinator will be back."""
    with pytest.raises(Unreachable, match=r"not enrolled yet: http.* cannot be reached"):
        place.join(url="http://127.0.0.1:9", enrol_timeout_s=0.3)


def test_the_coordinator_comes_back(place: Place) -> None:
    """Its address is silent for a while, in the middle of a round: no other node needs to know."""
    coordinator, hold = place.coordinator, place.folder / "hold"
    hold.touch()
    with serving(coordinator) as url:
        port = int(url.rpartition(":")[2])
        node = place.start(VectorLearner(hold=hold), url=url)
        coordinator.wait(lambda: coordinator.beats)
    hold.unlink()
    with serving(coordinator, port):
        assert node.end() is True
    check(place, 8)


def test_a_lost_stop_is_found_out(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that says once that a job has ended, and that answer is lost."""
    coordinator, lost = place.coordinator, []
    real = coordinator._news

    def once(job: str, *more: object) -> Said | None:
        return None if lost and coordinator.ended(job) else real(job, *more)

    def lose(asked: Asked, said: Said) -> bool:
        stop = asked.path.endswith("/work") and b'"type":"stop"' in said.body
        lost.extend([said] * stop)
        return stop

    monkeypatch.setattr(coordinator, "_news", once)
    coordinator.lose = lose
    assert place.join(poll_wait_s=0.3) is True
    assert len(lost) == 1
    check(place, 8)
