"""One node's part in a job, event by event."""

import pytest

from shoal.core.client.worker import Worker
from shoal.core.protocol.machine import HUB, Send, Timer
from shoal.core.protocol.message import BlobRef, Join, NoTask, Poll, Task


@pytest.mark.parametrize(
    "answer", [NoTask("a"), Task((1, 1), "a", "train", 0, 1, BlobRef("a" * 64, 10))], ids=["idle", "task"]
)
def test_a_new_process_says_so_until_the_hub_has_answered(answer: NoTask | Task) -> None:
    """Or, if the first word is lost, the failures of the process before are not forgotten."""
    worker = Worker("a")
    assert Send(HUB, Join("a")) in worker.start(0.0)
    assert Send(HUB, Join("a")) in worker.on(Timer(), 5.0)
    worker.on(answer, 6.0)
    assert Send(HUB, Poll("a")) in worker.on(Timer(), 10.0)
