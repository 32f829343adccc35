"""Several coordinators on one database, and nodes that ask now this one, now that one, and often twice."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.support.clients import client
from tests.support.coordinator import OPERATOR, Api, Server
from tests.support.node import Node
from tests.support.postgres import rows
from tests.support.waiting import pause, until

BODIES = "blobs"
ANSWER_S = 5.0
"""Seconds after which a coordinator that was stopped counts as one that does not answer."""
EVERY_S = 0.05


def settings(tmp_path: Path, url: str, lease_s: float = 30.0) -> dict[str, Any]:
    """Settings that all of them share."""
    return {"database_url": url, "leader_lease_s": lease_s, "blobs": str(tmp_path / BODIES)}


_ANNOUNCED = "CASE WHEN announced_term = term THEN address ELSE '' END"


def followers(url: str) -> dict[str, str]:
    """The addresses of the followers that answer, by name."""
    found = rows(
        url,
        f"SELECT name, {_ANNOUNCED} FROM leases WHERE name <> 'coordinator' AND announced_term = term AND until > 0",
    )
    return {name.removeprefix("follower:"): address for name, address in found}


def owners(url: str) -> dict[str, str]:
    """The address at which each job is answered for; empty: the leader's."""
    known = followers(url)
    return {job: known.get(owner, "") for job, owner in rows(url, "SELECT name, owner FROM jobs")}


def lease(url: str) -> tuple[int, str]:
    """The term, and the address of the owner that answers in it, if one does yet."""
    found = rows(url, f"SELECT term, {_ANNOUNCED} FROM leases WHERE name = 'coordinator'")
    return found[0] if found else (0, "")


class Fleet(Api):
    """Their processes. Asks the coordinators in turn until one answers."""

    def __init__(
        self, make: Callable[..., Server], tmp_path: Path, url: str, count: int, owner_s: float, **more: Any
    ) -> None:
        super().__init__()
        self.database_url, self.folder = url, tmp_path
        self.members = [make(f"r{i}", **{**settings(tmp_path, url, owner_s), **more}) for i in range(count)]
        self._turns = itertools.count()
        for member in self.members:
            member.start()

    @property
    def url(self) -> str:  # type: ignore[override]
        """Another one at each look."""
        return self.members[next(self._turns) % len(self.members)].url

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Asks until a coordinator answers.

        A coordinator that loses its lease may create a job and answer 503. A client that asks again then
        looks whether its job exists.
        """
        vain = 0

        def answered() -> httpx.Response | None:
            nonlocal vain
            try:
                found = super(Fleet, self).request(method, path, **more)
            except httpx.TransportError:
                vain += 1
                return None
            vain += found.status_code == 503
            return found if found.status_code != 503 else None

        found: httpx.Response = until(f"an answer to {method} {path}", answered)
        if vain and (method, path) == ("POST", "/api/v1/jobs") and found.status_code == 409:
            return self.request("GET", f"{path}/{more['json']['spec']['name']}")
        return found

    def owner(self) -> Server:
        """The one that answers now."""

        def found() -> Server | None:
            _, address = lease(self.database_url)
            return next((one for one in self.members if one.pid and one.url == address), None)

        owner: Server = until("an owner", found)
        return owner

    def standbys(self) -> list[Server]:
        owner = self.owner()
        return [one for one in self.members if one is not owner]


class Eager(Node):
    """A node that sends a fifth of its messages twice, to the next coordinator."""

    doubled = 0
    chance = 0.2

    def once(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        first = super().once(method, path, **more)
        rng = self.__dict__.setdefault("rng", random.Random(self.node))
        if method == "GET" or rng.random() >= self.chance:
            return first
        self.doubled += 1
        second = super().once(method, path, **more)
        return first if first is not None and first.status_code < 500 else second


def nodes_of(fleet: Fleet, count: int, sizes: dict[str, int], history: Any) -> list[Eager]:
    """Such nodes, begun."""
    found = [Eager(lambda: fleet.url, f"n{i}", fleet.token(), sizes, history) for i in range(count)]
    for node in found:
        node.start()
    return found


class Storm:
    """Trouble for some time: owners are killed and begun again, others are stopped for longer than their lease lasts.

    `run` returns when all of it is over; then the figures are there. `struck` is the term of the last leader it struck.
    """

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self._fleet, self._rng = fleet, random.Random(seed)
        self.kills = self.zombies = self.followers = self.struck = self.answered = self.unanswered = 0
        self.longest_s = 0.0

    def run(self, seconds: float, pause_s: float) -> None:
        """Something every `pause_s`, until that time has passed."""
        end = time.monotonic() + seconds
        over = threading.Event()
        watching = threading.Thread(target=self._watch, args=(over,))
        watching.start()
        try:
            while time.monotonic() < end:
                pause(self._rng.uniform(0.5, 1.5) * pause_s)
                self._strike()
        finally:
            over.set()
            watching.join()

    def _strike(self) -> None:
        """Something happens to the leader, or to a follower, and is over."""
        victim, term = self._victim()
        if self._rng.random() < 0.6:
            victim.kill()
            self.kills += 1
            if self._rng.random() < 0.7:  # else it takes its own lease up again, at once
                self._await(victim, term)
            victim.start(ready=False)
            return
        self.zombies += 1
        signal_of(victim, signal.SIGSTOP)
        try:
            self._await(victim, term)
        finally:
            signal_of(victim, signal.SIGCONT)

    def _victim(self) -> tuple[Server, int]:
        """The leader, or a follower that owns a job, as often; and its term."""
        at = {address: term for address, term in self._owning().items() if self._rng.random() < 0.5}
        known = [one for one in self._fleet.members if one.pid and one.url in at]
        if known:
            self.followers += 1
            return known[0], at[known[0].url]
        self.struck, _ = lease(self._fleet.database_url)
        return self._fleet.owner(), 0

    def _owning(self) -> dict[str, int]:
        """The epochs of followers that own jobs, by address."""
        owning = "leases.name = 'follower:' || jobs.owner AND announced_term = term"
        return dict(rows(self._fleet.database_url, f"SELECT address, term FROM leases JOIN jobs ON {owning}"))

    def _await(self, gone: Server, term: int) -> None:
        """Until its lease is another's, or it has none any more."""
        url = self._fleet.database_url
        if term:
            until("its jobs to be taken over", lambda: term not in (self._owning().get(gone.url), 0))
        else:
            until("another owner", lambda: lease(url)[1] not in ("", gone.url))

    def _watch(self, over: threading.Event) -> None:
        """Ask the next coordinator, again and again; return the time without an answer."""
        since = time.monotonic()
        with client(timeout=ANSWER_S, headers={"Authorization": f"Bearer {OPERATOR}"}) as asks:
            while not over.wait(EVERY_S):
                try:
                    found = asks.get(f"{self._fleet.url}/api/v1/jobs").status_code == 200
                except httpx.TransportError:
                    found = False
                if found:
                    self.longest_s, since = max(self.longest_s, time.monotonic() - since), time.monotonic()
                self.answered, self.unanswered = self.answered + found, self.unanswered + (not found)

    def figures(self) -> dict[str, float]:
        """Return the lines to print."""
        return {
            "kills of an owner": self.kills,
            "owners stopped for longer than their lease": self.zombies,
            "of these, followers": self.followers,
            "epochs": lease(self._fleet.database_url)[0],
            "questions answered": self.answered,
            "questions not answered": self.unanswered,
            "longest time without an answer, s": round(self.longest_s, 2),
        }


def signal_of(server: Server, sig: int) -> None:
    """Send a signal to a member's process."""
    os.kill(server.pid, sig)


def doubled(url: str) -> list[Any]:
    """Return duplicate or missing rows of the journal and of derived tables; there may be none."""
    twice = "SELECT job, {0}, count(*) FROM {1} GROUP BY job, {0} HAVING count(*) > 1"
    found = rows(url, twice.format("seq", "journal")) + rows(url, twice.format("number", "versions"))
    for job, count, last in rows(url, "SELECT job, count(*), max(number) FROM versions GROUP BY job"):
        if count != last + 1:
            found.append((job, "versions", count, last))
    for job, first, last, count in rows(url, "SELECT job, min(seq), max(seq), count(*) FROM journal GROUP BY job"):
        if count != last - first + 1:
            found.append((job, "journal", first, last, count))
    return found
