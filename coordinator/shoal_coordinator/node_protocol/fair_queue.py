"""Round-robin over the jobs that have something for a node, so that none waits for ever behind another.

The job that a node was served last comes last the next time; so does the follower that had it; and followers come
before this coordinator's own jobs if the last answer was one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from shoal_coordinator.jobs.job_runner import JobRunner

T = TypeVar("T")


class FairQueue:
    """The last served job of each node."""

    def __init__(self) -> None:
        self._jobs: dict[str, str] = {}
        self._followers: dict[str, str] = {}
        self._own: set[str] = set()  # nodes whose last answer was of a job of this coordinator

    def served(self, node: str, job: str) -> None:
        """Note that the node was served this coordinator's job."""
        self._jobs[node] = job
        self._own.add(node)

    def served_by(self, node: str, follower: str) -> None:
        """Note that the node was served by a follower."""
        self._followers[node] = follower
        self._own.discard(node)

    def forget(self, node: str) -> None:
        """Forget a removed node."""
        self._jobs.pop(node, None)
        self._followers.pop(node, None)
        self._own.discard(node)

    def followers_first(self, node: str) -> bool:
        """Return True if it is the followers' turn."""
        return node in self._own

    def ordered_runners(self, node: str, running: Sequence[JobRunner]) -> Sequence[JobRunner]:
        """Return these in turn."""
        return _after(running, self._jobs.get(node), lambda runner: runner.name)

    def ordered_followers(self, node: str, names: Sequence[str]) -> Sequence[str]:
        """Return followers in turn."""
        return _after(names, self._followers.get(node), str)


def _after(all_: Sequence[T], last: str | None, name: Callable[[T], str]) -> Sequence[T]:
    """Return all of them, beginning after that one."""
    if len(all_) < 2 or last is None:
        return all_
    at = next((at for at, one in enumerate(all_, start=1) if name(one) == last), 0)
    return [*all_[at:], *all_[:at]]
