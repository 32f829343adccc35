"""`shoal infer`: held-out examples answered by the levels of a network with exits."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shoal.core.errors import Unreachable
from shoal.core.exits.cascade_level import CascadeAnswer
from shoal.core.exits.packed_bits import PackedFeatures
from shoal.model_file import save_model
from shoal.serving.level_above import LevelAbove
from tests.cli.conftest import Shoal, envelope
from tests.serving.levels import middle, model

CALL = ("infer", "model.safetensors", "--learner", "tests.serving.levels:learner")


@pytest.fixture(autouse=True)
def model_file(place: Path) -> None:
    save_model(model(), place / "model.safetensors")


def test_each_level_is_told_with_its_answers_and_bytes(shoal: Shoal) -> None:
    thresholds = ",".join(map(str, middle()))
    found = envelope(shoal(*CALL, "--thresholds", thresholds, "--json"))["data"]
    assert [one["level"] for one in found["levels"]] == ["device", "edge", "cloud"]
    assert sum(one["answered"] for one in found["levels"]) == found["examples"] == 40
    assert found["bytes_per_answer"] == sum(one["sent_bytes"] for one in found["levels"]) / 40
    said = shoal(*CALL, "--thresholds", thresholds).stdout
    assert "40 examples, accuracy" in said


def test_without_the_level_above_the_device_answers_all(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(self: LevelAbove, features: PackedFeatures, model: str) -> CascadeAnswer:
        raise Unreachable("no answer")

    monkeypatch.setattr(LevelAbove, "answer", silent)
    with capture_logs() as logged:
        found = envelope(shoal(*CALL, "--up", "http://127.0.0.1:1", "--thresholds", "0,0", "--json"))["data"]
    assert [one["why"] for one in logged] == ["no answer"]
    assert [(one["answered"], one["degraded"]) for one in found["levels"]] == [(40, 40), (0, 0), (0, 0)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--thresholds", "0.1"), "1 thresholds for 3 exits"),
        (("--thresholds", "a,b"), "write numbers with commas"),
        (("--thresholds", "0,0", "--timeout-s", "1"), "need --up"),
        (("--up", "http://127.0.0.1:1", "--timeout-s", "0"), "0.1"),
    ],
)
def test_options_that_do_not_fit_are_refused(shoal: Shoal, arguments: tuple[str, ...], says: str) -> None:
    refused = shoal(*CALL, *arguments)
    assert refused.exit_code == 2
    assert says in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--level", "edge"), "the edge has a level above"),
        (("--level", "device", "--up", "http://127.0.0.1:1"), "the device has a level above"),
        (("--level", "cloud", "--threshold", "0.1"), "the cloud answers everything"),
        (("--threshold", "0.1"), "are for one level"),
    ],
)
def test_a_level_needs_what_belongs_to_it(shoal: Shoal, arguments: tuple[str, ...], says: str) -> None:
    refused = shoal("serve", *CALL[1:], "--port", "0", *arguments)
    assert refused.exit_code == 2
    assert says in refused.stderr
