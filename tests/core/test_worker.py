"""One node's part in a job, event by event."""

import pytest

from shoal.core.machine import HUB, Send, Timer
from shoal.core.message import Idle, Join, Order, Poll, Ref
from shoal.core.worker import Worker


@pytest.mark.parametrize(
    "answer", [Idle("a"), Order((1, 1), "a", "train", 0, 1, Ref("a" * 64, 10))], ids=["idle", "order"]
)
def test_a_new_process_says_so_until_the_hub_has_answered(answer: Idle | Order) -> None:
    """Or, if the first word is lost, the failures of the process before are not forgotten."""
    worker = Worker("a")
    assert Send(HUB, Join("a")) in worker.start(0.0)
    assert Send(HUB, Join("a")) in worker.on(Timer(), 5.0)
    worker.on(answer, 6.0)
    assert Send(HUB, Poll("a")) in worker.on(Timer(), 10.0)
