"""Callbacks of a simulation, and its versions as columns and plots."""

from __future__ import annotations

import sys
import types
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import shoal
from shoal.core.errors import InvalidJob, LearnerFailed, ShoalError
from shoal.core.model.tree import Tree, digest
from shoal.core.protocol.message import Metrics
from shoal.model_file import load_model, save_model
from shoal.results.callbacks import RoundCallback, StopSimulation
from tests.algorithms.softmax import unbalanced
from tests.sim.test_simulation import job


class Recording(RoundCallback):
    """A callback that records what it sees, and saves every second model."""

    def __init__(self, folder: Path) -> None:
        self.seen: list[tuple[str, int, str]] = []
        self.metrics: dict[int, Metrics] = {}
        self.folder = folder

    def round_started(self, number: int, model: Tree) -> None:
        self.seen.append(("starts", number, digest(model)))

    def round_ended(self, number: int, model: Tree, metrics: Metrics) -> None:
        self.seen.append(("ends", number, digest(model)))
        self.metrics[number] = metrics
        if number % 2 == 0:
            save_model(model, self.folder / f"{number}.safetensors")


@pytest.mark.parametrize("fidelity", ["lean", "wire"])
def test_callbacks_see_the_start_and_the_end_of_each_round(fidelity: Any, tmp_path: Path) -> None:
    seen, held_out = Recording(tmp_path), unbalanced(tested=True)[0]
    result = shoal.simulate(
        job(rounds=4), unbalanced(tested=True), callbacks=[seen], fidelity=fidelity, held_out=held_out
    )
    assert [(kind, number) for kind, number, _ in seen.seen] == [
        (kind, number) for number in (1, 2, 3, 4) for kind in ("starts", "ends")
    ]
    assert seen.seen[-1][2] == digest(result.model)
    assert [one[2] for one in seen.seen[2::2]] == [one[2] for one in seen.seen[1:-1:2]], (
        "a round begins with that model"
    )
    for number, metrics in seen.metrics.items():
        measured = result.versions[number - 1].metrics
        assert metrics["eval/accuracy"] == measured["eval/accuracy"]
        assert metrics["held_out/accuracy"] == result.versions[number].metrics["held_out/accuracy"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.safetensors", "4.safetensors"]
    saved = load_model(tmp_path / "4.safetensors")
    assert digest(saved) == digest(result.model)


@pytest.mark.parametrize("fidelity", ["lean", "wire"])
def test_checkpoints_are_the_models_of_their_rounds(fidelity: Any, tmp_path: Path) -> None:
    result = shoal.simulate(job(rounds=5, checkpoint_every=2), unbalanced(), fidelity=fidelity)
    shorter = {rounds: shoal.simulate(job(rounds=rounds), unbalanced(), fidelity=fidelity) for rounds in (2, 4)}
    wanted = {rounds: digest(one.model) for rounds, one in shorter.items()}
    assert {number: digest(model) for number, model in result.checkpoints.items()} == wanted
    paths = result.save_checkpoints(tmp_path / "model.safetensors")
    assert [path.name for path in paths] == ["model-2.safetensors", "model-4.safetensors"]
    assert [digest(load_model(path)) for path in paths] == list(wanted.values())
    assert not shorter[2].checkpoints


@pytest.mark.parametrize("fidelity", ["lean", "wire"])
def test_a_callback_ends_a_simulation_that_has_done_enough(fidelity: Any, tmp_path: Path) -> None:
    """The other callbacks see the end of that round, too."""

    class Enough(RoundCallback):
        def round_ended(self, number: int, model: Tree, metrics: Metrics) -> None:
            if metrics["held_out/examples"] and number == 2:
                raise StopSimulation("two are enough")

    seen, held_out = Recording(tmp_path), unbalanced(tested=True)[0]
    more: Any = {"callbacks": [Enough(), seen], "fidelity": fidelity, "held_out": held_out}
    result = shoal.simulate(job(rounds=4, checkpoint_every=2), unbalanced(), **more)
    assert (result.state, len(result.versions), seen.seen[-1]) == ("stopped", 3, ("ends", 2, digest(result.model)))
    assert (result.events[-1].text, result.events[-1].version) == ("stopped by a callback: two are enough", 2)
    assert digest(result.model) == digest(shoal.simulate(job(rounds=2), unbalanced(), fidelity=fidelity).model)
    assert [*result.checkpoints] == [2]


def test_an_error_of_a_callback_is_named() -> None:
    class Broken(RoundCallback):
        def round_ended(self, number: int, model: Tree, metrics: Metrics) -> None:
            raise ValueError(f"no disk for {number}")

    with pytest.raises(LearnerFailed, match=r"callback \(Broken\) failed in .*line \d+: ValueError: no disk for 1"):
        shoal.simulate(job(rounds=4), unbalanced(), callbacks=[Broken()])


@pytest.fixture(scope="module")
def result() -> shoal.Result:
    return shoal.simulate(job(rounds=4), unbalanced(tested=True))


def test_columns_make_a_frame(result: shoal.Result) -> None:
    frame = pd.DataFrame(result.columns())
    assert list(frame["version"]) == [0, 1, 2, 3, 4]
    assert frame["eval/accuracy"].iloc[-1] == result.accuracy
    assert frame["up_bytes"].iloc[-1] == sum(version.up_bytes for version in result.versions)
    assert (frame["bytes"] == frame["up_bytes"] + frame["down_bytes"]).all()
    assert frame["bytes"].is_monotonic_increasing
    assert isnan(result.columns()["train/loss"][-1]), "nothing is trained on the last version"


class Axes:
    """Axes of matplotlib that record what is drawn."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []
        self.names: list[str] = []
        self.legend_lines = 0

    def plot(self, x: Any, y: Any, **more: Any) -> None:
        self.lines.append((x, y, more["label"]))

    def set_xlabel(self, name: str) -> None:
        self.names.append(name)

    set_ylabel = set_xlabel

    def legend(self) -> None:
        self.legend_lines = len(self.lines)


def test_a_plot_draws_a_metric_against_bytes(result: shoal.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = types.ModuleType("matplotlib.pyplot")
    pyplot.subplots = lambda: (None, Axes())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "matplotlib", types.ModuleType("matplotlib"))
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", pyplot)
    axes = result.plot("accuracy", x="bytes")
    columns = result.columns()
    assert axes.lines == [(columns["bytes"], columns["eval/accuracy"], "digits")]
    assert axes.names == ["bytes", "eval/accuracy"]
    assert result.plot("train/loss", axes=axes) is axes
    assert axes.lines[1][0] == [0, 1, 2, 3], "the last version has no loss"
    assert axes.legend_lines == 2


def test_a_plot_says_what_is_missing(result: shoal.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidJob, match="no version has acuracy") as told:
        result.plot("acuracy")
    assert "accuracy" in told.value.hint
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ShoalError, match="a plot needs matplotlib, which is not installed"):
        result.plot()
