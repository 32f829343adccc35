"""The result of `shoal.simulate`, and its progress."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from errno import ENOSPC
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import shoal
from shoal.core.errors import StorageFailed
from shoal.core.model.tree import Slots
from shoal.learn import TorchLearner
from shoal.progress import displayed
from shoal.results.result import VersionResult
from tests.algorithms.softmax import unbalanced
from tests.sim.test_simulation import SPEC, Broken, job

X, Y = torch.randn(64, 3, generator=torch.Generator().manual_seed(1)), torch.arange(64) % 2


@pytest.fixture(scope="module")
def result() -> shoal.Result:
    return shoal.simulate(SPEC, unbalanced(tested=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_trained_model_reaches_torch_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    """By every way out: the mapping, a file, a file read by safetensors itself, and straight into a module."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(dtype)

    learners = [TorchLearner(network, (X[i::2].to(dtype), Y[i::2]), device="cpu") for i in range(2)]
    result = shoal.simulate(shoal.JobSpec(name="half", rounds=2), learners)
    module = result.load_into(network())
    truth = {name: value.clone() for name, value in module.state_dict().items()}
    assert truth["0.weight"].dtype == dtype
    assert truth["0.weight"].abs().max() < 10
    assert {name: torch.tensor(value).tolist() for name, value in result.model.items()} == {
        name: value.tolist() for name, value in truth.items()
    }
    path = result.save(tmp_path / "model.safetensors")
    for found in (load_file(path), shoal.load_model(path, into=network()).state_dict()):
        assert all(
            torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in truth.items()
        )
    assert {name: value.tolist() for name, value in shoal.load_model(str(path)).items()} == {
        name: value.tolist() for name, value in truth.items()
    }
    learners[0].load(result.model)
    assert torch.equal(learners[0].module.state_dict()["0.weight"], truth["0.weight"])


def test_nodes_that_never_counted_are_named(result: shoal.Result) -> None:
    assert "never counted" not in repr(result)
    assert "\nnever counted: node-1, node-2\n" in repr(replace(result, uncounted=("node-1", "node-2")))


def test_a_pipe_or_device_is_written_to_and_stays(result: shoal.Result, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        result.save(pipe)
        content = reader.read()
    assert list(tmp_path.iterdir()) == [pipe]
    assert content == result.save(tmp_path / "file").read_bytes()


def test_a_model_that_cannot_be_written_leaves_what_is_there(
    result: shoal.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageFailed, match="No such file") as caught:
        result.save(tmp_path / "gone" / "model.safetensors")
    assert caught.value.hint
    path = tmp_path / "model.safetensors"
    path.write_text("the one before")

    def full(slots: Slots) -> Iterator[bytes]:
        yield b"half of it"
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr("shoal.model_file.payload_pieces", full)
    with pytest.raises(StorageFailed, match="No space left"):
        result.save(path)
    assert path.read_text() == "the one before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_result_is_shown_as_a_short_table(result: shoal.Result) -> None:
    head, columns, *rows = repr(result).splitlines()
    assert head.startswith("digits: done, 4 versions, 3 nodes, ")
    assert columns.split() == ["version", "accuracy", "loss", "reports", "up", "down", "at"]
    assert [row.split()[0] for row in rows] == ["0", "1", "2", "3", "4"]
    assert rows[-1].split()[1] == f"{100 * result.accuracy:.1f}"
    long = shoal.simulate(job(rounds=59), unbalanced())
    assert len(repr(long).splitlines()) <= 14
    assert repr(long).splitlines()[-1].split()[0] == "59"
    assert "accuracy" not in repr(long), "nothing was measured"


def test_a_long_table_has_the_versions_that_were_measured() -> None:
    """Evenly spaced ones would miss most of them; the last version is shown in any case."""
    some = {number: {"held_out/accuracy": number / 100} for number in range(0, 60, 10)}
    versions = tuple(VersionResult(number, "", 0.0, 1.0, 3, some.get(number, {}), 1, 1, {}) for number in range(58))
    result = shoal.Result("long", "interrupted", versions, {}, {}, (), {}, {})
    shown = [(row[0], row[1]) for row in result.table()[1]]
    assert shown == [*((str(number), f"{number:.1f} %") for number in some), ("57", "–")]


def test_what_went_wrong_is_in_the_table() -> None:
    one, two, three = unbalanced()
    result = shoal.simulate(job(rounds=4), {"a": one, "b": two, "<c>": Broken(three.x, three.y)})
    assert "in events, the last: <c> failed" in repr(result)
    assert "&lt;c&gt; failed" in result._repr_html_()


class Cells(HTMLParser):
    """The texts of a table's cells."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.within = False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "tr":
            self.rows.append([])
        self.within = tag in ("td", "th")

    def handle_endtag(self, tag: str) -> None:
        self.within = False

    def handle_data(self, data: str) -> None:
        if self.within:
            self.rows[-1].append(data)


def test_a_notebook_shows_the_same_table(result: shoal.Result) -> None:
    cells = Cells()
    cells.feed(result._repr_html_())
    assert cells.rows == [result.table()[0], *result.table()[1]]


# While it runs


class Terminal:
    """A stream of which rich believes that people watch it."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_unless_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, shown in ((None, True), (True, True), (False, False)):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        shoal.simulate(job(rounds=2), unbalanced(), progress=given)
        assert ("digits" in terminal.text and "100%" in terminal.text) == shown


def test_nobody_who_does_not_watch_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    shoal.simulate(job(rounds=4), unbalanced())
    assert capsys.readouterr() == ("", "")
    shoal.simulate(job(rounds=4), unbalanced(), progress=True)
    said = capsys.readouterr()
    assert said.out == ""
    assert 4 <= len(said.err.splitlines()) <= 11
    assert said.err.splitlines()[-1].startswith("digits: 100%, ")


def test_a_notebook_shows_a_bar_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """With IPython's own display alone, which a kernel always has."""
    drawn: list[str] = []

    class Handle:
        def update(self, html: str) -> None:
            drawn.append(html)

    def display(html: str, *, display_id: bool) -> Handle:
        assert display_id
        drawn.append(html)
        return Handle()

    ipython, shown = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    shell = types.SimpleNamespace(kernel=object())
    ipython.get_ipython, shown.HTML, shown.display = lambda: shell, str, display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    shoal.simulate(job(rounds=2), unbalanced())
    assert drawn[0].startswith('digits <progress value="0.000"')
    assert 'value="1.000"' in drawn[-1]
    assert "done: 2 versions" in drawn[-1]
    drawn.clear()
    shoal.simulate(job(rounds=2), unbalanced(), progress=False)
    assert drawn == []
    del shell.kernel  # IPython in a terminal is a terminal
    with displayed(None, "x") as told:
        assert told is None


def test_a_display_is_not_renewed_more_often_than_one_can_look(monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal import progress

    now, drawn = [0.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    tell = progress._seldom(lambda share, text: drawn.append(share))
    for step in range(101):
        now[0] += 0.01
        tell(step / 100, "")
    assert len(drawn) <= 12
    assert drawn[-1] == 1.0
