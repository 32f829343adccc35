"""One coordinator among several on one PostgreSQL database: the leader, or a follower that owns some of the jobs.

`LeaderLease` (`shoal/core/cluster/leader_lease.py`) decides which; `Replica` carries that out. Each time that this
process becomes leader or follower it builds a new coordinator, restored from the journal, and it discards it when it
stops being that. So no answer comes from stale memory: `LeaderProxy` checks the lease before each answer.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog
from starlette.types import ASGIApp

from shoal.core.cluster.job_assignment import JobOwners
from shoal.core.cluster.leader_lease import (
    HeldLease,
    LeaderLease,
    ReadLease,
    RemoteLeader,
    StepDown,
    TakeLease,
)
from shoal.core.errors import NotAllowed, ShoalError
from shoal_coordinator.cluster.host import ClusterHost, OwnerUpdates
from shoal_coordinator.cluster.reverse_proxy import (
    ReverseProxy,
    fingerprint,
)
from shoal_coordinator.cluster.rpc import Rpc
from shoal_coordinator.nodes.credentials import hash_secret, operator_token
from shoal_coordinator.peers.shared_secrets import TOKEN
from shoal_coordinator.schemas.replicas import ReplicaStatus
from shoal_coordinator.settings import Settings
from shoal_coordinator.storage.lease_store import LeaseHolder, LeaseStore, clock
from shoal_coordinator.telemetry.traffic import TrafficCounter

log = structlog.get_logger()

EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not listened on


MakeCoordinator = Callable[[TrafficCounter, LeaseHolder, Rpc], tuple[ClusterHost, ASGIApp]]
"""Builds a coordinator and the application in front of it."""


@dataclass
class ActiveCoordinator:
    """A coordinator of this process while it leads or follows."""

    coordinator: ClusterHost
    app: ASGIApp
    lease: LeaderLease | HeldLease
    traffic: TrafficCounter
    term: int = 0
    secret: str = ""

    def owns(self, job: str) -> bool:
        """Return whether it answers for a job. Jobs that have ended are the leader's."""
        record = self.coordinator.jobs.records.get(job)
        return record is not None and record.ended_at is None

    def is_handing_over(self, job: str) -> bool:
        """Return whether a job has ended and the leader may not know: it must not miss a change."""
        record = self.coordinator.jobs.records.get(job)
        return record is not None and record.ended_at is not None


class CoordinatorStarter:
    """A starter of coordinators. `set_traffic`: called with the counter of requests' bytes from then on."""

    def __init__(
        self, make: MakeCoordinator, set_traffic: Callable[[TrafficCounter], None], settings: Settings, rpc: Rpc
    ) -> None:
        self._make, self._set_traffic, self._settings, self._rpc = make, set_traffic, settings, rpc
        self.address = ""

    def set_address(self, port: int, own_host: Callable[[], str]) -> None:
        """Set where others reach this process, with its certificate's fingerprint. `own_host`: of this machine."""
        host, cert = self._settings.host, self._settings.tls_cert
        host = own_host() if host in EVERYWHERE else host
        address = f"{'https' if cert else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
        address = f"{address}#{fingerprint(cert.read_text(encoding='ascii'))}" if cert else address
        self.address = self._settings.advertise or address

    async def start(self, holder: LeaseHolder, on_lease_lost: Callable[[], None]) -> ActiveCoordinator:
        """Build a coordinator and restore its jobs. Raises what its start raises."""
        traffic = TrafficCounter()
        coordinator, app = await asyncio.to_thread(self._make, traffic, holder, self._rpc)
        active = ActiveCoordinator(coordinator, app, holder.lease, traffic)
        coordinator.on_lease_lost = on_lease_lost
        await coordinator.start()
        active.term = coordinator.database.term
        return active

    async def announce(self, active: ActiveCoordinator) -> bool:
        """Let others forward requests to a coordinator; return whether the database has taken its address."""
        try:
            active.secret = await active.coordinator.database.announce(self.address)
        except ShoalError as error:
            log.warning("the others do not know where this one is", error=error.message)
            return False
        self._set_traffic(active.traffic)
        return True


class OwnerReader:
    """A periodic reader of the rows that name the owners of jobs.

    Args:
        on_change: called after each reading, and again when jobs were taken over.
        updates: returns the part that takes jobs over, if this process leads.
    """

    def __init__(
        self, store: LeaseStore, on_change: Callable[[], None], updates: Callable[[], OwnerUpdates | None]
    ) -> None:
        self._store, self._on_change, self._updates = store, on_change, updates
        self.owners = JobOwners()
        self._task: asyncio.Task[None] | None = None
        self._update: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read."""
        self._task = asyncio.create_task(self._run(), name="owners")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._store.lease.look_s)
            seen = await asyncio.to_thread(self._store.read_owners)
            if seen is None:
                continue
            self.owners = seen
            self._on_change()
            updates = self._updates()
            if updates is not None:
                self._update = asyncio.create_task(updates.update_owners(seen))
                await asyncio.wait({self._update})
                if not self._update.cancelled() and (error := self._update.exception()) is not None:
                    log.error("jobs of lost followers could not be taken over; trying again", error=repr(error))
                self._on_change()

    async def cancel_update(self) -> None:
        """End an update that would wait for a closed database."""
        if self._update is not None:
            self._update.cancel()
            await asyncio.gather(self._update, return_exceptions=True)

    async def stop(self) -> None:
        """Read no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class Replica:
    """The leader, a follower or a standby, as the lease says.

    Args:
        set_traffic: called with the counter of requests' bytes from then on.
    """

    def __init__(
        self,
        settings: Settings,
        store: LeaseStore,
        make: MakeCoordinator,
        set_traffic: Callable[[TrafficCounter], None],
    ) -> None:
        self._settings, self.store, self.lease = settings, store, store.lease
        self.leading: ActiveCoordinator | None = None
        self.following: ActiveCoordinator | None = None
        self.forwarder = ReverseProxy(self._mark_down)
        self._starter = CoordinatorStarter(make, set_traffic, settings, Rpc(self.forwarder, self._leader))
        self.owner_reader = OwnerReader(store, self._owners_changed, self._owner_updates)
        self._woken, self._stopping = asyncio.Event(), False
        self.changed = asyncio.Event()
        """Set, and replaced by another, whenever a leader or an owner may have changed, or this process ends."""
        self.is_stopping = False
        self._task: asyncio.Task[None] | None = None
        self._retry_at = float("-inf")
        self._decided = asyncio.Event()

    @property
    def coordinator(self) -> ClusterHost | None:
        """Return the coordinator that leads, if this process does."""
        return self.leading.coordinator if self.leading is not None else None

    def _leader(self) -> RemoteLeader | None:
        follower = self.lease.way(clock())
        return follower if isinstance(follower, RemoteLeader) else None

    def _owner_updates(self) -> OwnerUpdates | None:
        leads = self.leading is not None and self.lease.phase == "leader"
        return self.leading.coordinator.cluster.follower_jobs if leads and self.leading is not None else None

    async def start(self, port: int) -> None:
        """Return when this process leads and has restored everything, or knows that another leads.

        `port`: where requests come in. Raises the `ShoalError` of a failed first attempt, unless another leads.
        """
        self._starter.set_address(port, self.store.own_host)
        self._task = asyncio.create_task(self._run(), name="replica")
        self.owner_reader.start()
        settled = asyncio.create_task(self._decided.wait())
        await asyncio.wait({settled, self._task}, return_when=asyncio.FIRST_COMPLETED)
        settled.cancel()
        if self._task.done():
            await self.owner_reader.stop()
            self.store.close()
            await self._task

    def drain(self) -> None:
        """End open polls and streams."""
        self.is_stopping = True
        self._notify_change()
        for active in (self.leading, self.following):
            if active is not None:
                active.coordinator.drain()

    async def stop(self) -> None:
        """Release the database at once. A second call does nothing."""
        if self._stopping:
            return
        self._stopping = True
        self._woken.set()
        if self._task is not None:
            await self.owner_reader.stop()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._stop_following()
        if self.leading is not None:
            await self._stop_leading()
        self.forwarder.close_all()
        self.store.close()

    def _notify_change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def _mark_down(self, owner: RemoteLeader) -> None:
        if owner == self._leader():
            self.lease.shun(clock())

    def _owners_changed(self) -> None:
        self._close_stale()
        self._notify_change()

    def _close_stale(self) -> None:
        """Break requests to coordinators that are gone."""
        leader = self._leader()
        self.forwarder.close_all(
            but={*self.owner_reader.owners.live(clock()).values(), *([leader] if leader is not None else [])}
        )

    async def _run(self) -> None:
        """Carry out what the lease says, one thing after the other."""
        while not self._stopping:
            self._woken.clear()
            match self.lease.next(clock()):
                case ReadLease():
                    await self._read_lease()
                case TakeLease():
                    await self._start_leading()
                case StepDown():
                    await self._stop_leading()
                    self.lease.dropped(clock())
                case float() as until:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(max(0.0, until - clock())):
                            await self._woken.wait()

    async def _read_lease(self) -> None:
        begun = clock()
        seen = await asyncio.to_thread(self.store.read_lease)
        if seen is None:
            if not self._decided.is_set():  # at the start: opening the database says what is wrong with it
                self.lease.phase = "taking"
                await self._start_leading()
                return
            self.lease.missed(clock())
            return
        self.lease.looked(begun, clock(), seen)
        self._notify_change()
        self._close_stale()
        if seen.left_s > 0 and seen.holder not in ("", self.store.name):
            if not self._decided.is_set():
                await self._compare_tokens()
                log.info("standing by", owner=seen.address or seen.holder, term=seen.term)
            self._decided.set()
            await self._start_following()

    async def _start_following(self) -> None:
        """Become a follower, if the blobs of jobs lie where all coordinators can read them."""
        if self.following is not None and self.following.coordinator.database.fenced:
            await self._stop_following()
        if self.following is not None or not self._settings.blobs or self._leader() is None or clock() < self._retry_at:
            return
        try:
            active = await self._start_coordinator(self.store.follower)
        except Exception as error:  # noqa: BLE001 - tried again in a while
            log.warning("no jobs can be active here", why=repr(error))
            self._retry_at = clock() + self.store.lease_s
            return
        if not await self._starter.announce(active):
            await active.coordinator.stop()
            return
        self.following = active
        log.info("follower", term=active.term, jobs=len(active.coordinator.jobs.records))

    async def _start_coordinator(self, holder: LeaseHolder) -> ActiveCoordinator:
        active = await self._starter.start(holder, self._woken.set)
        active.coordinator.replica_status = self.status
        return active

    async def _stop_following(self, *, keeps: bool = False) -> None:
        """Stop being a follower. `keeps`: keep its jobs from the leader, because this process becomes the leader."""
        follower, self.following = self.following, None
        if follower is not None:
            await follower.coordinator.stop(keeps=keeps)
            follower.lease.fenced()

    async def _compare_tokens(self) -> None:
        """Raise `NotAllowed` unless this process has the leader's operator token: it would change at a takeover."""
        theirs = await asyncio.to_thread(self.store.shared_secret, TOKEN)
        if theirs not in (None, hash_secret(operator_token(self._settings))):
            raise NotAllowed(
                "the operators' token here is not that of the coordinator that owns the database",
                code="replica.token",
                hint="give all of them the same operator_token; to change it, stop all of them",
            )

    async def _start_leading(self) -> None:
        """Become the leader, with a new coordinator that is restored from the journal."""
        seen = self.lease.seen
        await self._stop_following(keeps=True)
        try:
            if seen is None or seen.holder != self.store.name:
                await asyncio.to_thread(self._delete_copies)
            active = await self._start_coordinator(self.store.leader)
        except Exception as error:
            self.lease.refused(clock())
            locked = isinstance(error, ShoalError) and error.code == "storage.locked"
            if not locked and not self._decided.is_set():
                raise
            log.info("not taken over", why=repr(error))
            return
        self.leading = active
        if not await self._starter.announce(active):  # another was faster, or the database is gone: the lease knows
            await self._stop_leading()
            self.lease.refused(clock())
            return
        self.forwarder.close_all()
        self.lease.took(active.term)
        self._notify_change()
        self._decided.set()
        log.info("leader", term=active.term, address=self._starter.address)

    def _delete_copies(self) -> None:
        """Delete local copies of blobs: they would imply that the store still has the blobs."""
        shutil.rmtree(self._settings.data / "blob-cache", ignore_errors=True)

    async def _stop_leading(self) -> None:
        active, self.leading = self.leading, None
        if active is None:
            return
        log.warning("not the owner any more", term=active.term)
        await self.owner_reader.cancel_update()
        await active.coordinator.stop()

    def status(self) -> ReplicaStatus:
        """Return the state of this process."""
        seen, now = self.lease.seen, clock()
        leads = self.leading is not None and self.lease.phase == "leader"
        here, active = self.leading or self.following, list(self.owner_reader.owners.jobs.values())
        return ReplicaStatus(
            role="leader" if leads else "follower" if self.following is not None else "standby",
            name=self.store.name,
            address=self._starter.address,
            term=self.lease.term if leads else (seen.term if seen is not None else 0),
            leader=self._starter.address if leads else (seen.address if seen is not None else ""),
            takeovers=self.lease.takeovers,
            forwards=self.forwarder.count,
            failures=self.forwarder.failures,
            jobs=len(here.coordinator.jobs.running()) if here is not None else 0,
            followers={
                follower.address: active.count(name) for name, follower in self.owner_reader.owners.live(now).items()
            },
        )
