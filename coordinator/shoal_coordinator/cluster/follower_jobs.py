"""Followers, at the leader: the assignment of jobs to them, and their byte counts and log lines."""

from __future__ import annotations

from functools import partial
from typing import Any

import structlog
from fastapi import Response

from shoal.core.cluster.job_assignment import LEADER, JobOwners, owner_of_new_job, owner_to_move_to
from shoal.core.cluster.leader_lease import RemoteLeader
from shoal.core.errors import StorageFailed
from shoal.jobs.spec import JobSpec
from shoal_coordinator.cluster.event_relay import EventRelay
from shoal_coordinator.cluster.follower_polls import FollowerPolls
from shoal_coordinator.cluster.host import ClusterParts
from shoal_coordinator.cluster.job_routes import JobRoutes
from shoal_coordinator.cluster.rpc import FollowerCalls, node_identity, to_response
from shoal_coordinator.storage import job_owners as rows
from shoal_coordinator.storage.lease_store import clock

log = structlog.get_logger()


class FollowerJobs:
    """The assignment of jobs to followers."""

    def __init__(
        self,
        coordinator: ClusterParts,
        routes: JobRoutes,
        followers: FollowerCalls,
        polls: FollowerPolls,
        event_relay: EventRelay,
    ) -> None:
        self._coordinator, self._routes, self._followers = coordinator, routes, followers
        self._polls, self._event_relay = polls, event_relay
        self._stable_since = clock()  # since when no follower has come or gone, and no job has moved
        self._known: set[RemoteLeader] = set()  # followers that answered when the rows were read

    def choose_owner(self, spec: JobSpec) -> str:
        """Return the owner of a new job. A job that may continue by gossip stays with the leader: every poll tells its
        nodes that the coordinator is there (`shoal-term`)."""
        return LEADER if spec.gossip.allowed else owner_of_new_job(self._loads())

    def _loads(self) -> dict[str, int]:
        return self._routes.loads(self._coordinator.jobs.running())

    async def update_owners(self, owners: JobOwners) -> None:
        """Take the rows as they are now: take over from followers that are gone, and restore jobs that came back."""
        returning = self._routes.update(owners)
        self._coordinator.traffic.share(self._routes.jobs)
        for follower in owners.lost():
            self._polls.forget(follower)
            if await self._coordinator.database.write(partial(rows.take_over, follower=follower)):
                log.warning("a follower is gone; its jobs are taken over", follower=follower)
        if returning:
            await self._restore_jobs(returning)
        live = set(self._routes.live().values())
        if live != self._known:
            self._event_relay.update_followers(live)
            self._known, self._stable_since = live, clock()
            self._coordinator.wakeups.notify_all()
        if clock() - self._stable_since >= self._coordinator.settings.leader_lease_s:  # one move at a time
            await self._rebalance()

    async def _rebalance(self) -> None:
        """Give a job to a follower that owns fewer than the leader, if there is one."""
        to, running = owner_to_move_to(self._loads()), self._coordinator.jobs.running()
        movable = [one for one in running if not one.spec.gossip.allowed and not one.gate.is_restoring]
        if to == LEADER or not movable:
            return
        job, self._stable_since = movable[-1].name, clock()
        log.info("a job moves", job=job, to=to)
        self._routes.begin_assigning(job, to)
        try:
            await self._coordinator.hand_over(job, to)
        finally:
            self._routes.assigned(job, to)

    async def _restore_jobs(self, returning: set[str]) -> None:
        found = await self._coordinator.database.write(lambda c: rows.released(c, returning))
        for row in found:
            await self._coordinator.restore_job(row)
            self._routes.restored(row.name)
        if found:
            self._stable_since = clock()
            log.info("jobs came back", jobs=[row.name for row in found])
            self._coordinator.wakeups.notify_all()

    async def create(self, owner: str, name: str, body: bytes) -> Response:
        """Let a follower start a job. Raises `StorageFailed` when it does not answer."""
        follower = self._routes.live().get(owner)
        self._routes.begin_assigning(name, owner)  # nodes may report before it answers
        try:
            reply = await self._followers.call(follower, "POST", "/api/v1/jobs", body) if follower is not None else None
        finally:
            self._routes.withdraw(name)
        if reply is None:
            raise StorageFailed("the coordinator chosen for the job does not answer", hint="see whether it exists")
        if reply.status == 201:
            self._routes.assigned(name, owner)
            self._coordinator.traffic.share(self._routes.jobs)
            self._coordinator.wakeups.notify_all()
        return to_response(reply)

    async def forward_heartbeat(self, job: str, node: str, values: Any) -> None:
        """Pass a node's progress on to the job's owner."""
        follower = self._routes.route(job)
        if follower is not None:
            await self._followers.call(follower, "POST", "/internal/heartbeat", values, node_identity(node))


class FollowerSync:
    """The receiver of what followers count. A batch that is sent twice counts once."""

    def __init__(self, coordinator: ClusterParts, routes: JobRoutes, polls: FollowerPolls) -> None:
        self._coordinator, self._routes, self._polls = coordinator, routes, polls
        self._last: dict[str, tuple[str, int]] = {}  # by follower: its process, and the number of its last batch

    async def receive(
        self, name: str, process: str, number: int, rows: list[dict[str, Any]], lines: list[Any]
    ) -> list[Any]:
        """Store a follower's counts and log lines; return what was counted here for its jobs."""
        coordinator = self._coordinator
        self._polls.retry(name)
        if self._last.get(name) != (process, number):
            self._last[name] = process, number
            coordinator.traffic.add_rows_of_follower(rows)
            coordinator.log_store.take_in(lines)
        await coordinator.telemetry_writer.write_counts()
        return coordinator.traffic.take_shared(self._routes.jobs_of(name))
