"""Whose turn it is when several jobs have something for a node: none of them waits for ever behind another's.

Each time a node asks, the job that it was given something of the last time comes last; so does the deputy that had it;
and deputies come before this coordinator's own jobs when the last answer was one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from shoal_coordinator.driver import Driver

T = TypeVar("T")


class Turns:
    """What nodes were given last, by node."""

    def __init__(self) -> None:
        self._jobs: dict[str, str] = {}
        self._deputies: dict[str, str] = {}
        self._own: set[str] = set()  # nodes whose last answer was of a job of this coordinator

    def gave(self, node: str, job: str) -> None:
        """The node was given something of that job, which is this coordinator's."""
        self._jobs[node] = job
        self._own.add(node)

    def fetched(self, node: str, deputy: str) -> None:
        """The node was given something that a deputy had."""
        self._deputies[node] = deputy
        self._own.discard(node)

    def forget(self, node: str) -> None:
        """There is no such node any more."""
        self._jobs.pop(node, None)
        self._deputies.pop(node, None)
        self._own.discard(node)

    def deputies_first(self, node: str) -> bool:
        """Whether it is their turn."""
        return node in self._own

    def drivers(self, node: str, running: Sequence[Driver]) -> Sequence[Driver]:
        """These, in the order in which they are asked."""
        return _after(running, self._jobs.get(node), lambda driver: driver.name)

    def deputies(self, node: str, names: Sequence[str]) -> Sequence[str]:
        """The same for deputies."""
        return _after(names, self._deputies.get(node), str)


def _after(all_: Sequence[T], last: str | None, name: Callable[[T], str]) -> Sequence[T]:
    """All of them, beginning after that one."""
    if len(all_) < 2 or last is None:
        return all_
    at = next((at for at, one in enumerate(all_, start=1) if name(one) == last), 0)
    return [*all_[at:], *all_[:at]]
