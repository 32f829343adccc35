"""A node's part in a job that can do without its hub: a worker while there is one, a gossiping peer without.

    state         what it does                                          it leaves when
    coordinated   what the hub orders (`Worker`)                        the hub is silent for `ttl_s`: suspect
                                                                        it orders "gossip": away
    suspect       goes on with what it has in hand; asks the others     the hub is heard again, or another hears it and
                  whether they hear the hub                             carries our words (relayed): coordinated
                                                                        another has declared, or we do as for `grace_s`
                                                                        none of enough has heard it: away
    away          learns and mixes (`Gossip`); knocks at the hub        the hub has answered for `dwell_s`, and orders
                                                                        the models back: handover
    handover      begins nothing new, settles what is open, and         its model counts in a new version: coordinated
                  reports its model                                     the hub is silent again: away

Terms keep the past from interfering. The hub's orders carry its boot as their term; whoever goes away without being
told declares a term above all that it knows, and obeys nothing older from then on: neither a hub that was only cut off,
nor a declaration that was overtaken. A hub that is knocked at with a term as high as its own takes a higher one.

Nothing is lost on the way. Work in hand at the switch is finished and counts as the first local round; a report that
the hub has not acknowledged is taken into the model; and the model is given up only when a version holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Literal

from shoal.core.algorithm import Algorithm, tree_slot
from shoal.core.elsewhere import elsewhere
from shoal.core.failover import MIXED_ROUNDS, Base, Decreed, Failover, Holds, carried_on, unsaid
from shoal.core.filter import Filters
from shoal.core.gossip import Decline, Gossip, Halt, Live, PeerEffect, PeerEvent
from shoal.core.machine import (
    HUB,
    Amend,
    Cancel,
    Done,
    Effect,
    Memory,
    Note,
    Progress,
    Rejected,
    Result,
    Save,
    Send,
    Standing,
    Tell,
    Timer,
    Wake,
    Work,
)
from shoal.core.message import (
    Ack,
    Amendment,
    Bodies,
    Idle,
    Join,
    Knock,
    Lease,
    Leave,
    Message,
    Order,
    Ref,
    Report,
    Stop,
    ToHub,
    ref_of,
    ref_state,
    term_of,
)
from shoal.core.meter import Meter, exchange_bytes
from shoal.core.peer_message import Bulletin, Declare, HubMessage, Relay, Relayed, Suspect
from shoal.core.transfer import Transfer
from shoal.core.tree import Slots, sub
from shoal.core.voices import Unheard, Voices
from shoal.core.worker import Worker

ASK_S = 2.0
"""A suspicious node asks the others so often."""

Event = Message | HubMessage | PeerEvent | Progress | Rejected | Holds | Decreed | Unheard

State = Literal["coordinated", "suspect", "away", "handover"]


class Peer:
    """Drives `worker`, and what `begin` (from slots) or `revive` (from a state) makes. `population`: of the job."""

    def __init__(
        self,
        worker: Worker,
        begin: Callable[[Slots], Gossip],
        revive: Callable[[dict[str, Any]], Gossip],
        *,
        algorithm: Algorithm,
        filters: Filters = (),
        bodies: Bodies,
        failover: Failover,
        population: int,
    ) -> None:
        self.worker, self.node = worker, worker.node
        self._begin, self._revive = begin, revive
        self.algorithm, self.filters, self.bodies = algorithm, filters, bodies
        self.failover, self.population = failover, population
        self.state: State = "coordinated"
        self.term, self.base = 0, Base()
        self.gossip: Gossip | None = None
        self.order: Order | None = None  # the hub's standing order to carry on, if it knows that we do
        self.live: frozenset[str] = frozenset()
        self.roster: frozenset[str] | None = None  # everybody who is admitted, if that is known
        self.voices = Voices(self.node, failover.ttl_s)
        self.meter = Meter()  # of all bytes among peers; `begin` and `revive` give it to who gossips
        self._since, self._worker_at, self._own_at = 0.0, inf, inf  # when the present state was entered; alarms
        self._answering: float | None = None  # since when the hub has been answering without a pause
        self._saved: dict[str, Any] | None = None

    @property
    def relay(self) -> str:
        return self.voices.relay

    def restore(self, kept: dict[str, Any]) -> None:
        """Become what an earlier process has saved."""
        self.state, self.term, self.voices.term = kept["state"], kept["term"], kept["heard"]
        self.base = Base(kept["version"], ref_of(kept["model"]))
        self._fit()
        self.meter.restore(kept.get("budget"))
        self.worker.settings = kept.get("settings", {})
        if kept["gossip"] is not None:  # a handover that was under way is ordered again
            self.gossip, self.state = self._revive(kept["gossip"]), "away"
            self.worker.forget((self.term, 0))  # what was spooled is in the model

    def kept(self) -> dict[str, Any]:
        """All that must not be forgotten, as JSON values."""
        return {
            "state": self.state if self.gossip is not None else "coordinated",
            "term": self.term,
            "heard": self.voices.term,
            "version": self.base.version,
            "model": ref_state(self.base.model),
            "gossip": self.gossip.state() if self.gossip is not None else None,
            "budget": self.meter.state(),
            "settings": self.worker.settings,
        }

    def names(self) -> list[Ref]:
        """The bodies that this machine still needs, beside the worker's."""
        own = [self.base.model, self.order.body if self.order is not None else None]
        return [ref for ref in own if ref is not None] + (self.gossip.names() if self.gossip is not None else [])

    # Events

    def start(self, now: float) -> list[PeerEffect]:
        """Say hello, or go on without."""
        self._since = now
        self.voices.start(now)
        if self.gossip is not None:
            self._own_at = now
            return self._wrapped(self._from_gossip(self.gossip.start(now)), now)
        return self._wrapped(self._from_worker(self.worker.start(now), now), now)

    def on(self, event: Event, now: float) -> list[PeerEffect]:
        """Take one event and say what follows from it."""
        self.meter.see(now)
        effects = self._take(event, now)
        effects += self._move(now)
        return self._wrapped(effects, now)

    def _take(self, event: Event, now: float) -> list[PeerEffect]:  # noqa: PLR0911 - one line for each event
        match event:
            case Timer():
                return self._ring(now)
            case Live():
                self.live, self.roster = event.nodes - {self.node}, event.roster or self.roster
                return self._gossip(event, now)
            case Holds():
                self._hold(event.version, event.model)
                return []
            case Done() if self.gossip is not None:
                return self._gossip(event, now)
            case Done() | Progress() | Leave():
                return self._from_worker(self.worker.on(event, now), now)
            case Order() | Amendment() | Idle() | Ack() | Lease() | Stop() | Rejected():
                relayed = self.relay != "" and isinstance(event, Ack | Rejected)  # a report may have gone either way
                return self._hub_says(event, now, direct=not relayed)
            case Relay():
                return [Send(HUB, event.message)]
            case Relayed():
                return self._hub_says(event.message, now, direct=False) if event.node == self.relay else []
            case Suspect() | Bulletin() | Declare() | Decreed() | Unheard():
                return self._peer_says(event, now)
            case Halt() | Decline() | Transfer():
                return self._gossip(event, now)
            case _ if isinstance(event, ToHub):
                return []
            case _:
                return self._gossip(event, now) if self.gossip is not None else list(elsewhere(self.node, event))

    def _ring(self, now: float) -> list[PeerEffect]:
        effects: list[PeerEffect] = []
        if now >= self._worker_at:
            self._worker_at = inf
            if self._speaks:
                effects += self._from_worker(self.worker.on(Timer(), now), now)
            if self.relay:
                effects.append(Send(HUB, Knock(self.node, -1)))  # is our own way whole again?
        effects += self._gossip(Timer(), now)
        return effects

    @property
    def _speaks(self) -> bool:
        """Whether the worker speaks to the hub: not while we carry on and the hub does not know."""
        return self.gossip is None or self.order is not None

    def _gossip(self, event: PeerEvent, now: float) -> list[PeerEffect]:
        return self._from_gossip(self.gossip.on(event, now)) if self.gossip is not None else []

    # The hub

    def _hub_says(self, message: Message | Rejected, now: float, *, direct: bool) -> list[PeerEffect]:
        """Obey nothing of an earlier term than our own."""
        said = term_of(message, self.worker.order) if not isinstance(message, Rejected) else None
        if said is not None and said < self.term:
            return []
        if self._answering is None or not self.voices.hears(now):
            self._answering = now
        self.voices.hear_hub(now, direct=direct, term=said or 0)
        self.term = max(self.term, said or 0) if self.gossip is None or self.order is not None else self.term
        if isinstance(message, Lease):
            return []
        if self.gossip is not None and self._is_withdrawn(message):
            return self._left_out(now)
        if self.gossip is not None and isinstance(message, Order) and message.kind != "gossip":
            return []  # it has not heard yet that there is something to hand back
        if isinstance(message, Ack) and self.order is not None and message.order == self.order.id:
            return self._handed_back(message, now)
        return self._from_worker(self.worker.on(message, now), now, self._in_hand())

    def _is_withdrawn(self, message: Message | Rejected) -> bool:
        """Whether the hub has stopped waiting for us. (While a report is on its way, its answer says so.)"""
        if self.order is None or self.worker.said is not None:
            return False
        if isinstance(message, Order):
            return message.kind != "gossip" and message.id > self.order.id
        return isinstance(message, Idle) and message.after >= self.order.id

    def _left_out(self, now: float) -> list[PeerEffect]:
        """It has gone on without what we have: we knock, and bring it."""
        assert self.order is not None
        self.worker.forget(self.order.id)
        self.order, self._own_at = None, now
        return self._resume(now) if self.state == "handover" else []

    def _in_hand(self) -> Order | None:
        order = self.worker.order
        return order if order is not None and self.worker.working and order.kind == "train" else None

    def _from_worker(self, effects: Sequence[Effect], now: float, in_hand: Order | None = None) -> list[PeerEffect]:
        """The worker's effects; but an order to carry on is for us, and then what is in hand is not dropped."""
        found: list[PeerEffect] = []
        carry_on = next((e.order for e in effects if isinstance(e, Work | Amend) and e.order.kind == "gossip"), None)
        for effect in effects:
            match effect:
                case Wake(at):
                    self._worker_at = at
                case Work(order) | Amend(order) if order.kind == "gossip":
                    self.order = order
                case Cancel() if carry_on is not None:
                    pass
                case Send(_, body) if self.relay:
                    found.append(Tell(self.relay, Relay(self.node, body)))
                case _:
                    found.append(effect)
        if carry_on is not None and self.gossip is None and carry_on.body is not None:
            self._hold(carry_on.version, carry_on.body)
            found += self._go_away(Base(carry_on.version, carry_on.body), in_hand, None, now)
        return found

    def _hold(self, version: int, model: Ref) -> None:
        if version > self.base.version:
            self.base = Base(version, model)
            self._fit()

    def _fit(self) -> None:
        """An exchange of such models can be saved up for from now on."""
        if self.base.model is not None:
            self.meter.fit(exchange_bytes(self.base.model.nbytes))

    def _handed_back(self, ack: Ack, now: float) -> list[PeerEffect]:
        """A version holds our model: be a worker again. Or it does not: stay away."""
        effects = self._from_worker(self.worker.on(ack, now), now)
        self.order = None
        if not ack.counted:
            return effects + self._resume(now)
        if self.gossip is not None and self.gossip.memory is not None:
            self.worker.memory = self.gossip.memory
            effects.insert(0, Save(Memory(self.gossip.memory)))
        if self.gossip is not None and self.gossip.order is not None:
            effects.append(Cancel(self.gossip.order.id))  # it was not finished in time
        self.gossip = None
        self._enter("coordinated", now)
        return effects

    # Going away

    def _peer_says(self, message: Suspect | Bulletin | Declare | Decreed | Unheard, now: float) -> list[PeerEffect]:
        if isinstance(message, Bulletin | Declare) and (refused := self.voices.refuse(message, self.base.version)):
            return [*refused]
        match message:
            case Unheard():
                self._own_at = now if message.node == self.relay else self._own_at
                self.voices.fail(message.node, now, message.pause_s)
            case Suspect():
                return [Tell(message.node, self._declaration() or self._bulletin(now))]
            case Bulletin():
                self.voices.hear(message, now)
            case Declare() if message.term > self.term and self.gossip is not None and self.order is None:
                self.term = message.term
            case Declare() if message.term > self.term and self.gossip is None and not self.voices.hears(now):
                self.term, why = message.term, f"{message.node}: {message.why}"
                return self._leave_hub(why, now, Base(message.version, message.model))
            case Decreed():
                return self._decreed(message, now)
        return []

    def _decreed(self, event: Decreed, now: float) -> list[PeerEffect]:
        """Go away without asking whether others miss the hub as well; tell them."""
        if event.term <= self.term or self.gossip is not None or self.base.model is None or self.voices.hears(now):
            return []
        self.term = event.term
        return self._declared(self._leave_hub(event.why, now))

    def _bulletin(self, now: float) -> Bulletin:
        hears = self.voices.hears_directly(now)
        return Bulletin(self.node, self.term, hears, self.gossip is not None, self.base.version, self.base.model)

    def _declaration(self) -> Declare | None:
        """What we tell those who ask for the hub, if we have gone away by ourselves."""
        if self.gossip is None or self.order is not None or self.base.model is None:
            return None
        return Declare(self.node, self.term, self.base.version, self.base.model, "the hub is silent")

    def _leave_hub(self, why: str, now: float, theirs: Base = Base()) -> list[PeerEffect]:  # noqa: B008 - frozen
        """Carry on from the newest version that is known, and what we have not been able to report on it."""
        worker, in_hand = self.worker, self._in_hand()
        held, self.base = self.base, max(self.base, theirs, key=lambda base: base.version)
        work = unsaid(worker.said, held, self.base)
        if work is not None and worker.pending is not None:
            worker.memory = worker.pending
        worker.forget((self.term, 0))
        note = Note("state", f"without the hub from version {self.base.version}: {why}", self.base.version, self.node)
        return [note, *self._go_away(self.base, in_hand, work, now)]

    def _declared(self, gone: list[PeerEffect]) -> list[PeerEffect]:
        """The same, and all who are there are told."""
        declaration = self._declaration()
        assert declaration is not None
        return [*gone, *(Tell(node, declaration) for node in sorted(self.live))]

    def _go_away(self, base: Base, in_hand: Order | None, work: Report | None, now: float) -> list[PeerEffect]:
        assert base.model is not None
        slots, in_hand = carried_on(self.algorithm, self.filters, self.bodies, base.model, work or in_hand)
        self.gossip = gossip = self._begin(slots)
        gossip.me.live, gossip.me.roster = self.live, self.roster
        gossip.memory, gossip.settings = self.worker.memory, self.worker.settings
        self._enter("away", now)
        effects = list(gossip.adopt(in_hand)) if in_hand is not None else []
        return effects + self._from_gossip(gossip.start(now))

    def _from_gossip(self, effects: Sequence[PeerEffect]) -> list[PeerEffect]:
        """The peer's effects; its state is saved with ours, and its alarm is one of ours."""
        own = [effect for effect in effects if isinstance(effect, Save) and isinstance(effect.what, Standing)]
        return [effect for effect in effects if not isinstance(effect, Wake) and effect not in own]

    def _resume(self, now: float) -> list[PeerEffect]:
        """Go on gossiping, from where a handover has stopped."""
        assert self.gossip is not None
        self._enter("away", now)
        return self._from_gossip(self.gossip.resume())

    # Transitions by time

    def _enter(self, state: State, now: float) -> None:
        self.state, self._since, self._own_at, self._answering = state, now, now, None
        self.voices.forget()

    def _move(self, now: float) -> list[PeerEffect]:
        """Whatever the present state has come to."""
        if self.worker.stopped:
            return []
        if self.order is not None and self.order.recall and self.gossip is not None and self.state == "away":
            self._enter("handover", now)
            return [*self._gossip(Halt("handing back"), now), *self._move(now)]
        return {
            "coordinated": self._coordinated,
            "suspect": self._suspect,
            "away": self._away,
            "handover": self._handover,
        }[self.state](now)

    def _coordinated(self, now: float) -> list[PeerEffect]:
        self._own_at = self.voices.silent_at
        if now < self._own_at:
            return []
        self._enter("suspect", now)
        return self._suspect(now)

    def _suspect(self, now: float) -> list[PeerEffect]:
        if self.voices.hears_directly(now):
            self._enter("coordinated", now)
            return []
        effects = self._seek(now)
        if self.relay:
            self._enter("coordinated", now)
            return effects
        missing, term = self.voices.missing(now)
        may = now >= self._since + self.failover.grace_s and self.base.model is not None
        if may and missing >= self.failover.needed(self.population):
            self.term = max(self.term, term) + 1
            why = f"{missing} nodes have not heard it for {self.failover.ttl_s:g} s and more"
            return self._declared(self._leave_hub(why, now))
        return effects

    def _seek(self, now: float) -> list[PeerEffect]:
        """When our way is lost: speak through another, if one is known who hears the hub; ask, now and then, if not."""
        if now < self.voices.silent_at:
            self._own_at = self.voices.silent_at
            return []
        if self.voices.choose(now):
            self._own_at, self._worker_at = self.voices.silent_at, now if self._speaks else inf
            return [Note("state", f"the way to the hub is broken: through {self.relay}", self.base.version, self.node)]
        if now < self._own_at:
            return []
        self._own_at = now + ASK_S
        return [Tell(node, Suspect(self.node, self.term)) for node in sorted(self.live)]

    def _away(self, now: float) -> list[PeerEffect]:
        """Look for the hub, if it does not know where we are."""
        if self.order is not None:
            return self._seek(now)
        if now < self._own_at:
            return []
        pause = self.failover.ttl_s / 3
        self._own_at = now + pause
        if not self.voices.hears(now):
            self._answering = None
        steady = self._answering is not None and now - self._answering >= 2 * pause
        if steady and now - self._since >= self.failover.dwell_s and self.gossip is not None:
            return self._by_any_way(Join(self.node, (self.term, self.gossip.me.round)), now)
        return self._by_any_way(Knock(self.node, self.term), now)

    def _by_any_way(self, said: Join | Knock, now: float) -> list[PeerEffect]:
        """To the hub; and through another, while our own way is silent. One at a time is asked for that."""
        if self.voices.hears_directly(now) or not self.live:
            return [Send(HUB, said)]
        if (self.relay and now < self.voices.silent_at) or self.voices.choose(now):
            return [Send(HUB, said), Tell(self.relay, Relay(self.node, said))]
        asked = sorted(self.live)[int(now / ASK_S) % len(self.live)]
        return [Send(HUB, said), Tell(asked, Suspect(self.node, self.term))]

    def _handover(self, now: float) -> list[PeerEffect]:
        """Settle what is open, report, and be patient; but not for ever."""
        assert self.gossip is not None
        assert self.order is not None
        if self.worker.said is None:
            self._own_at = max(self._since + self.failover.settle_s, self.gossip.mixer.moving_until)
            return self._report(now) if self.gossip.idle or now >= self._own_at else []
        end = self.voices.heard + self.failover.ttl_s + self.failover.grace_s
        if now < end:
            found = self._seek(now)
            self._own_at = min(end, self._own_at)
            return found
        self.term, self.order = self.term + 1, None
        self.worker.forget((self.term, 0))
        return self._resume(now)

    def _report(self, now: float) -> list[PeerEffect]:
        """Our model, relative to the version in the order."""
        assert self.gossip is not None
        assert self.order is not None
        assert self.order.body is not None
        me = self.gossip.me
        moved = sub(me.model, tree_slot(self.bodies.get(self.order.body), "model"))
        done = Done(
            self.order.id, Result(me.weight, self.bodies.put({"model": moved}), {MIXED_ROUNDS: float(me.round)})
        )
        return self._from_worker(self.worker.on(done, now), now)

    # Around every event

    def _wrapped(self, effects: list[PeerEffect], now: float) -> list[PeerEffect]:
        """What has changed is saved first, and the alarm is set last."""
        kept = self.kept()
        if kept != self._saved:
            self._saved = kept
            effects.insert(0, Save(Standing(kept)))
        if self._worker_at == inf and self._speaks and not self.worker.stopped:
            self._worker_at = now + self.worker.beat_s
        alarm = min(self._worker_at, self._own_at, self.gossip.alarm if self.gossip is not None else inf)
        return [*effects, Wake(alarm)] if alarm < inf else effects
