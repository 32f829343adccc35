"""Two ends of the messages through a folder, in one process, with a clock that the test moves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.runtime.training import folder_channel
from shoal.runtime.training.folder_channel import NODE, TRAINER, FolderChannel
from shoal.runtime.training.message_log import file_path
from tests.support.waiting import until

TIMEOUT_S = 50.0


class Ends:
    """The node's end and that of the training process, which joins later."""

    def __init__(self, folder: Path, clock: Any) -> None:
        self.folder, self.clock = folder, clock
        self.taken: dict[str, list[dict[str, Any]]] = {NODE: [], TRAINER: []}
        self.lost: dict[str, str] = {}
        file_path(folder, TRAINER, 0).touch()
        self.node = self.open(NODE, TRAINER)

    def open(self, mine: str, theirs: str) -> FolderChannel:
        def lose(why: str) -> None:
            self.lost[mine] = why

        heard = mine == TRAINER
        return FolderChannel(self.folder, (mine, theirs), TIMEOUT_S, self.taken[mine].append, lose, heard=heard)

    def pass_time(self, seconds: float, *channels: FolderChannel) -> None:
        """Let time pass, and these ends give a sign of life."""
        self.clock.now += seconds
        until("a sign of life", lambda: all(one._sent_at == self.clock.now for one in channels))


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    monkeypatch.setattr(folder_channel, "POLL_S", 0.002)
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(folder_channel, "time", SimpleNamespace(monotonic=lambda: clock.now))
    made = Ends(tmp_path, clock)
    yield made
    made.node.close()


def test_a_queue_takes_as_long_as_it_takes_and_silence_is_noticed_later(ends: Ends) -> None:
    ends.pass_time(10 * TIMEOUT_S, ends.node)
    assert not ends.node.heard
    trainer = ends.open(TRAINER, NODE)
    ends.node.send({"n": 1})
    trainer.send({"ready": True})
    until("messages", lambda: ends.taken[NODE] and ends.taken[TRAINER])
    for _ in range(4):
        ends.pass_time(TIMEOUT_S / 2, ends.node, trainer)
    assert not ends.lost, "signs of life are enough"
    trainer.close()
    length = file_path(ends.folder, TRAINER, 0).stat().st_size
    until("the last message", lambda: ends.node._reader._start == length)
    ends.pass_time(TIMEOUT_S - 1, ends.node)
    assert not ends.lost
    ends.clock.now += TIMEOUT_S
    until("the loss", lambda: ends.lost)
    assert ends.lost == {NODE: f"it has been silent for {2 * TIMEOUT_S - 1:.0f} s"}
    assert ends.taken == {NODE: [{"ready": True}], TRAINER: [{"n": 1}]}


def test_a_process_whose_node_is_silent_from_the_beginning_gives_up(ends: Ends) -> None:
    ends.node.close()
    trainer = ends.open(TRAINER, NODE)
    until("the last sign of life of the node", lambda: trainer._sent_at == ends.clock.now)
    ends.clock.now += TIMEOUT_S + 1
    until("the loss", lambda: ends.lost.get(TRAINER))
    assert "silent" in ends.lost[TRAINER]
    trainer.close()


def test_a_folder_that_has_gone_ends_both(ends: Ends) -> None:
    trainer = ends.open(TRAINER, NODE)
    shutil.rmtree(ends.folder)
    until("both", lambda: len(ends.lost) == 2)
    assert set(ends.lost.values()) == {"its folder is gone"}
    trainer.close()
