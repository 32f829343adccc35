"""Updates that come through a filter: they are undone before they are measured, and refused like any other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shoal.core.model.tree import Tree
from shoal.filters.quantize import Quantize
from shoal.wire.payload import payload_pieces
from tests.support.coordinator import inside
from tests.support.node import displacement
from tests.support.scenario import SIZE, Stage, problem, set_up
from tests.support.waiting import until

FILTER = {"name": "quantize", "bits": 8, "bucket": 4}
BUCKETS = 3
NORM_MAX = 100.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with inside(tmp_path_factory.mktemp("filtered") / "data") as running:
        made = set_up(running, filters=[FILTER], limits={"update_norm_max": NORM_MAX})
        yield made
        made.close()


def made_up(scales: Any, codes: Any = 127) -> bytes:
    """A body of the right form with these scales and codes."""
    tree = Tree.of(
        {
            "codes": np.full(BUCKETS * 4, codes, np.int8).view(np.uint8),
            "scales": np.broadcast_to(np.array(scales, np.float32), (BUCKETS,)).copy(),
        }
    )
    return b"".join(bytes(piece) for piece in payload_pieces({"model": tree}))


def quantized(values: Any) -> bytes:
    """A body as an edge client makes it."""
    tree = Quantize(8, 4).encode(Tree.of({"w": values.astype(np.float32)}), 7)
    return b"".join(bytes(piece) for piece in payload_pieces({"model": tree}))


BAD = {
    "NaN": (made_up(np.nan), "payload.not-finite"),
    "infinity": (made_up(np.inf), "payload.not-finite"),
    "nothing times infinity": (made_up(np.inf, codes=0), "payload.not-finite"),
    "a norm above the limit": (made_up(NORM_MAX), "update.norm"),
}


@pytest.mark.parametrize("way", ["inline", "before"])
@pytest.mark.parametrize("name", BAD)
def test_made_up_scales_are_refused_and_change_nothing(stage: Stage, name: str, way: str) -> None:
    data, code = BAD[name]
    if way == "before" and code == "update.norm":  # a body may come; the report that names it may not
        answer = stage.send("n0", "PUT", f"/jobs/main/blobs/{hashlib.sha256(data).hexdigest()}", content=data)
        assert answer.status_code in (200, 201)
    before = stage.picture()
    if way == "inline" or code == "update.norm":
        answer = stage.report(data)
    else:
        answer = stage.send("n0", "PUT", f"/jobs/main/blobs/{hashlib.sha256(data).hexdigest()}", content=data)
    problem(answer, 422, code)
    after = stage.picture()
    assert {**after, "events": 0, "blobs": 0} == {**before, "events": 0, "blobs": 0}
    assert code == "update.norm" or after["blobs"] == before["blobs"]


def test_a_plain_update_is_not_of_this_job(stage: Stage) -> None:
    before = stage.picture()
    answer = stage.report(displacement("n0", 0, SIZE))
    assert (answer.status_code, answer.json()["code"].partition(".")[0]) == (422, "payload")
    assert stage.picture()["hub"] == before["hub"]


def test_the_norm_is_that_of_the_numbers_and_not_of_the_codes(tmp_path: Any) -> None:
    """Codes of 127 have a norm of hundreds; their decoded values may have one just below the limit."""
    with inside(tmp_path / "data") as running:
        stage = set_up(running, filters=[FILTER], limits={"update_norm_max": 1.0})
        data = made_up(0.99 / np.sqrt(SIZE))
        assert stage.report(data).status_code == 200
        (report,) = stage.running.runner("main").hub.state.round.reports
        assert report.norm == pytest.approx(0.99, rel=1e-5)
        problem(stage.report(made_up(1.01 / np.sqrt(SIZE)), "n1"), 422, "update.norm")
        assert stage.report(quantized(np.full(SIZE, 0.1)), "n1").status_code == 200
        until("version 1", lambda: running.job("main")["version"] == 1)
        stage.close()
