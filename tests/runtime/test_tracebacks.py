"""Where an error came from, as other machines may read it; and that a pump tells it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.core.errors import LearnerFailed, Refused
from shoal.core.protocol.message import Ack, TaskFailed
from shoal.runtime.observability.tracebacks import traceback_text_of
from shoal.runtime.training.ipc import error_fields, error_from
from shoal.runtime.worker_pump import WorkerPump
from shoal.validation.message_checks import TRACEBACK_MAX
from shoal.wire.codec import Frame, decode, encode
from tests.runtime.scripted_pump import World, pumped, until
from tests.runtime.task_runs import task


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause  # noqa: TRY301 - for its traceback
    except BaseException as found:
        return found


def test_the_users_own_frames_are_told() -> None:
    text = traceback_text_of(raised(LearnerFailed("training failed"), raised(ValueError("no data"))))
    assert text.endswith("ValueError: no data")
    assert f'{Path(__file__).name}", line ' in text
    assert "LearnerFailed" not in text, "its message is told as the error"


@pytest.mark.parametrize("cause", [None, Refused("also ours")])
def test_errors_of_our_own_say_everything_themselves(cause: BaseException | None) -> None:
    assert traceback_text_of(raised(Refused("gone"), cause)) == ""


@pytest.mark.parametrize("cause", [None, KeyError("x")])
def test_an_error_of_another_process_brings_its_own(cause: BaseException | None) -> None:
    """Also one that says everything itself: the log of the process is not told in place of nothing."""
    error = raised(LearnerFailed("training failed"), cause)
    assert traceback_text_of(error_from(error_fields(error, "the log of the process"))) == traceback_text_of(error)


def test_nothing_secret_goes_out() -> None:
    text = traceback_text_of(raised(RuntimeError(f"with sht_abcdefgh in {Path.home()}/data\x1b[31m\u202e")))
    assert "sht_abcdefgh" not in text
    assert str(Path.home()) not in text
    assert "~/data" in text
    assert all(letter.isprintable() or letter == "\n" for letter in text)


@pytest.mark.parametrize("letter", ["x", "\n", "\N{GRINNING FACE}", '"', "é"])
def test_the_longest_fits_into_a_head(letter: str) -> None:
    text = traceback_text_of(raised(RuntimeError(f"begin{letter * 30_000}the end")))
    assert len(text) <= TRACEBACK_MAX
    assert text.startswith("Traceback")
    assert text.endswith("the end")
    said = TaskFailed("a", (1, 2), letter * 400, "train", text)
    assert decode(encode(Frame("j", said))).message == said
    assert len(json.dumps(text)) <= 32_000


class Hears(World):
    """Keeps failures as they were said."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[TaskFailed] = []

    def fail(self, job: str, said: TaskFailed) -> Ack:
        self.failures.append(said)
        return super().fail(job, said)


@pytest.mark.parametrize(("where", "phase"), [("body", "download"), ("do", "train"), ("report", "upload")])
@pytest.mark.parametrize("tracebacks", [True, False])
def test_a_pump_tells_how_far_it_was(where: str, phase: str, tracebacks: bool) -> None:
    world = Hears()
    world.answers[where] = [Refused("not finite") if where == "report" else ValueError("no data")]

    async def scenario(world: World, pump: WorkerPump) -> None:
        await pump.submit(task(1))
        await until(lambda: bool(world.failures) and pump.held is None)  # type: ignore[attr-defined]

    pumped(scenario, world, tracebacks=tracebacks)
    (said,) = world.failures
    assert said.phase == phase
    assert said.traceback.endswith("ValueError: no data") == (tracebacks and where != "report")
    assert bool(said.traceback) == (tracebacks and where != "report")
