"""The decision on a node's poll for one job. It is pure: `NodeProtocolHandler` carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shoal.core.protocol.machine import HubEvent
from shoal.core.protocol.message import DrainNode, Leave, NodeInfo, NoTask, Poll, Stop, Task, TaskId
from shoal.core.server.hub import Hub

HeldTask = tuple[TaskId, int]
"""A task that a node holds, and its revision."""


class PollReply(NamedTuple):
    """The message that a node does not know yet."""

    message: Task | Stop | NoTask
    is_amendment: bool = False
    """True if the node holds an earlier revision of the task."""


@dataclass(frozen=True)
class JobPoll:
    """A node's poll for one job, and what is known of the node."""

    info: NodeInfo
    drain: DrainNode
    """Tells the hub of the node's availability."""
    held: HeldTask | None = None
    is_wanted: bool = True
    """False if the node polls for other jobs only."""


def decide_poll(hub: Hub, poll: JobPoll, *, is_introduced: bool = False) -> HubEvent | PollReply | None:
    """Return an event that the hub must take before the reply, or the reply; None: the node knows all.

    Args:
        is_introduced: whether the event of an earlier decision on this poll was taken.
    """
    node = poll.drain.node
    member = hub.roster.get(node)
    if not poll.is_wanted:  # its hello made it a member, but it takes no part
        return Leave(node) if member is not None and member.is_present and not is_introduced else None
    if not is_introduced and not hub.is_poll_repeated(node):
        return Poll(node, poll.info)
    if not is_introduced and member is not None and member.node_info.drain_reason != poll.info.drain_reason:
        return poll.drain  # an operator changed it before the job began, or while its hub was restored
    return _find_reply(hub, node, poll.held)


def _find_reply(hub: Hub, node: str, held: HeldTask | None) -> PollReply | None:
    message = hub.poll_reply(node)
    match message:
        case Task() if held is None or (message.id, message.revision) > held:
            return PollReply(message, held is not None and held[0] == message.id)
        case Stop(model_differs=True):
            return PollReply(message)
        case NoTask() if held is not None and _is_withdrawn(hub, node, held[0]):
            return PollReply(message)
    return None


def _is_withdrawn(hub: Hub, node: str, task: TaskId) -> bool:
    """Return whether a held task was withdrawn. One that was reported was not: its acknowledgement is on the way."""
    member = hub.roster.get(node)
    return member is None or member.last_ack is None or member.last_ack.task != task
