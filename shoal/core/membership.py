"""Who is there, found out without a server: SWIM (Das, Gupta, Motivala 2002) with Lifeguard (Dadgar et al. 2018).

    at the start    Hello to a few: who hears that tells all that it knows
    each period     Ping one peer, whose turn it is in a shuffled order
    no Pong         some others Probe it for me: Pong, or Silent (whoever says that is there itself)
    still none      it is suspect; others confirm that, or it refutes it, by a higher incarnation
    no refutation   it is dead: nobody begins anything with it any more
    dead            one of the dead is pinged now and then, for ever: so a partition that heals is healed

Rumours travel on these messages, each a bounded number of times. Lifeguard's three: a peer that has reason to doubt its
own health is slower to accuse (`health`), a suspicion is the shorter the more peers hold it independently, and who is
suspected is told so first of all. A process that was held up (its alarm comes late) draws no conclusion from silence.

The roster, who is admitted, is apart from this and comes from elsewhere (`admit`). A peer of the roster that nobody has
heard of counts as dead. To be dead here harms nobody: a single word from that peer takes it back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from random import Random

from shoal.core.beliefs import Beliefs
from shoal.core.machine import Effect, Note, Tell, Timer
from shoal.core.pace import Pace
from shoal.core.peer_message import Hello, Liveness, MembershipMessage, News, Ping, Pong, Probe, Rumour, Silent
from shoal.core.plausible import lie
from shoal.core.rumours import LIVE, UNHEARD, wrong_with
from shoal.core.ways import COLLECT, Ways

CALLERS_PERIODS = 3
"""How many periods longer than it may take a caller is silent before it is suspect."""


@dataclass
class _Turn:
    """The peer whose turn it is, and what has come of it."""

    target: str
    seq: int
    ask_at: float
    answered: bool = False
    asked: frozenset[str] = frozenset()
    silent: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Favour:
    """A peer that is probed for another one: `seq` is my own, `theirs` the one to answer with."""

    target: str
    seq: int
    theirs: int
    due: float


class Membership:
    """One peer's view of the others. `now` is this process's own clock; it is never compared with anybody else's.

    It wants to be called by `alarm`; its owner may have other alarms, and makes one `Wake` of them.
    """

    def __init__(self, node: str, *, rng: Random, pace: Pace | None = None, incarnation: int = 0) -> None:
        self.node, self.pace = node, pace or Pace()
        self.health = 0  # 0 is good
        self._rng = rng
        self._seq = rng.getrandbits(31)  # so that a Pong for an earlier process does not answer this one
        self._beliefs = Beliefs(node, incarnation, self.pace)
        self._ways = Ways()
        self._heard: dict[str, float] = {}
        self._turns: list[str] = []
        self._called = 0
        self._turn: _Turn | None = None
        self._favours: dict[str, _Favour] = {}  # by who asked: each has but one turn at a time
        self._next = inf
        self._informed = False

    # ------------------------------------------------------------------------------------------------ what is known
    @property
    def incarnation(self) -> int:
        """How often this peer had to say that it is alive. Worth keeping on a disk, but it is found again without."""
        return self._beliefs.incarnation

    @property
    def alarm(self) -> float:
        """When it wants to be called again, at the latest; never, before the start and after the leave."""
        if self._next == inf:
            return inf
        asks = self._turn.ask_at if self._turn is not None and not self._turn.answered else inf
        return min(self._next, asks, *(favour.due for favour in self._favours.values()), *self._beliefs.verdicts())

    def live(self) -> frozenset[str]:
        """The peers that nobody has given up, suspects among them, without this one."""
        return frozenset(self._beliefs.live)

    def away(self) -> frozenset[str]:
        """The peers that were given up, or never heard of, and have not said goodbye."""
        return frozenset(held.node for held in self._beliefs if held.state == "dead")

    def within_reach(self) -> frozenset[str]:
        """Those of the live ones that this peer can speak to."""
        return frozenset(self._beliefs.live) - self._ways.hidden

    def state_of(self, node: str) -> Liveness:
        """What is believed of an admitted peer. KeyError for anybody else."""
        return "alive" if node == self.node else self._beliefs[node].state

    def heard_s(self, node: str, now: float) -> float:
        """Seconds since a message of that peer itself came; infinite when none did."""
        return now - self._heard.get(node, -inf)

    def beliefs(self) -> tuple[Rumour, ...]:
        """What is believed of every admitted peer but this one, by name."""
        return tuple(self._beliefs)

    # --------------------------------------------------------------------------------------------------- what is done
    def admit(self, nodes: frozenset[str], ways: Ways | None = None) -> None:
        """From now on these make up the roster. The others are forgotten at once, with all that they ever said."""
        beliefs, self._ways = self._beliefs, ways or Ways()
        beliefs.admit(nodes)
        self._heard = {node: at for node, at in self._heard.items() if node in beliefs}
        self._turns = [node for node in self._turns if node in beliefs]
        kept = {asker: f for asker, f in self._favours.items() if asker in beliefs and f.target in beliefs}
        self._favours = kept
        if self._turn is not None and self._turn.target not in beliefs:
            self._turn = None

    def start(self, now: float) -> list[Effect]:
        """Say hello to a few. The first turn comes within a period, and not everywhere at the same moment."""
        self._beliefs.announce()
        self._informed = False
        self._next = now + self._rng.random() * self.pace.period_s
        return [self._hello(node) for node in self._some(self._callable(), self.pace.helpers)]

    def leave(self) -> list[Effect]:
        """Say goodbye to a few, who tell the others. From now on nothing is answered."""
        self._next = inf
        word = (Rumour(self.node, "left", self.incarnation),)
        callers = sorted(self._beliefs.live & self._ways.callers)  # nobody else might be able to tell them
        some = [*callers, *self._some(sorted(self._beliefs.live - self._ways.uncallable), 2 * self.pace.helpers)]
        return [Tell(node, News(self.node, self.incarnation, word)) for node in some]

    def on(self, event: MembershipMessage | Timer, now: float) -> list[Effect]:
        """Take a message, or the time that has come."""
        if self._next == inf:
            return []
        self._excuse(now)
        effects = [] if isinstance(event, Timer) else self._take(event, now)
        effects += self._tick(now)
        return [*self._conclude(), *effects]

    # ------------------------------------------------------------------------------------------------------- messages
    def _take(self, message: MembershipMessage, now: float) -> list[Effect]:
        sender, beliefs = message.node, self._beliefs
        why = self._refusal(message)
        if why:
            return [Note("refusal", f"{sender}: {why}", 0, sender)]
        why = self._fault(message, now)
        if why:
            return [lie(sender, f"{sender}: {why}")]
        self._heard[sender] = now
        beliefs.hear_itself(sender, message.incarnation, now)
        gone = sender not in beliefs.live
        old = isinstance(message, News)
        self._informed |= old
        news = (rumour for rumour in message.news if rumour.node == sender or not beliefs.leaps(rumour))
        said = (*news, Rumour(sender, "alive", message.incarnation))
        hidden = self._ways.hidden  # of these no silence will tell
        heard = [beliefs.hear(rumour, now, old=old and rumour.node not in hidden) for rumour in said]
        behind = [held for held in heard if held is not None]
        effects = self._answer(message, now, behind)
        if (gone and sender in beliefs.live) or isinstance(message, Hello):
            pieces = beliefs.everything(sender)
            effects += [Tell(sender, News(self.node, self.incarnation, piece)) for piece in pieces]
        return effects

    def _refusal(self, message: MembershipMessage) -> str:
        """Why this message is not acted on; empty if it is. Nothing has been changed by it then."""
        if message.node not in self._beliefs:
            return "is not admitted"
        if len(message.news) > self.pace.news_most:
            return f"told {len(message.news)} rumours at once, at most {self.pace.news_most} are taken"
        if isinstance(message, Probe) and message.target not in self._beliefs and message.target != self.node:
            return f"wants {message.target} probed, which is not admitted"
        return ""

    def _fault(self, message: MembershipMessage, now: float) -> str:
        """Return why no honest peer can have said this; "" if one can. See `shoal.core.plausible`."""
        said = (Rumour(message.node, "alive", message.incarnation), *message.news)
        if len({rumour.node for rumour in message.news}) < len(message.news):
            return "tells two rumours about one peer at once"
        for rumour in said:
            if why := wrong_with(rumour):
                return why
            if rumour.node != message.node and self._beliefs.is_made_up(rumour, now):
                return f"tells incarnation {rumour.incarnation} of {rumour.node}, which is far above what that one says"
        return ""

    def _answer(self, message: MembershipMessage, now: float, behind: list[Rumour]) -> list[Effect]:
        """What the sender is owed. `behind`: what it does not know yet."""
        match message:
            case Ping():
                return [self._pong(message.node, message.seq, self.node, behind)]
            case Probe(target=self.node):
                return [self._pong(message.node, message.seq, self.node, behind)]
            case Probe():
                return self._do_favour(message, now)
            case Pong():
                return self._ponged(message)
            case Silent():
                turn = self._turn
                if turn is not None and (turn.seq, turn.target) == (message.seq, message.target):
                    turn.silent.add(message.node)
        return []

    def _do_favour(self, probe: Probe, now: float) -> list[Effect]:
        favour = self._favours.get(probe.node)
        if favour is not None and favour.theirs == probe.seq:
            return []  # the same request, a second time
        ping = self._ping(probe.target)
        self._favours[probe.node] = _Favour(probe.target, self._seq, probe.seq, now + self.pace.timeout_s)
        return [ping]

    def _ponged(self, pong: Pong) -> list[Effect]:
        turn, sender = self._turn, pong.node
        if turn is not None and (turn.seq, turn.target) == (pong.seq, pong.of) and sender in {turn.target, *turn.asked}:
            turn.answered = True
        done = [a for a, favour in self._favours.items() if (favour.target, favour.seq) == (sender, pong.seq)]
        return [self._pong(asker, self._favours.pop(asker).theirs, sender) for asker in done]

    # ----------------------------------------------------------------------------------------------------------- time
    def _excuse(self, now: float) -> None:
        """After a hold-up what was waited for may lie unread: no silence of that time counts, and the turn is over."""
        late = now - self.alarm
        if late <= self.pace.timeout_s:
            return
        self._turn = None
        self._favours.clear()
        self._beliefs.adjourn(late)
        self._next = now + self.pace.period_s
        self._feel(+1)

    def _tick(self, now: float) -> list[Effect]:
        """Do all that is due."""
        effects: list[Effect] = []
        if self._turn is not None and not self._turn.answered and now >= self._turn.ask_at:
            effects += self._ask_others(self._turn)
        for asker in [asker for asker, favour in self._favours.items() if now >= favour.due]:
            favour, news = self._favours.pop(asker), self._beliefs.news(asker)
            effects.append(Tell(asker, Silent(self.node, self.incarnation, favour.theirs, favour.target, news)))
        self._beliefs.condemn(now)
        if now >= self._next:
            self._judge(now)
            effects += self._begin_turn(now)
        return effects

    def _begin_turn(self, now: float) -> list[Effect]:
        """Ping the next one; remind those whom this peer accuses; try one of the dead; ask on if nobody has told."""
        slower = 1 + self.health
        self._next = now + self.pace.period_s * slower
        effects: list[Effect] = []
        target = self._whose_turn()
        if target in self._ways.callers:
            self._judge_caller(target, now)
        elif target is not None:
            effects.append(self._ping(target))
            self._turn = _Turn(target, self._seq, now + self.pace.timeout_s * slower)
        within = self._callable()
        others = [node for node in self._beliefs.accused() if self.pace.buddy and node != target and node in within]
        dead = [node for node in within if self._beliefs[node].state == "dead"]
        if dead and (target is None or self._rng.random() < self.pace.reprobe):
            others.append(self._rng.choice(dead))
        others += [node for node in self._collected() if node not in {target, *others}]
        asks = self._ways.hidden and self._rng.random() < self.pace.reprobe  # only by others is anything known of these
        hellos = self._some(within, 1) if asks or not self._informed else []
        return [*effects, *(self._ping(node) for node in others), *(self._hello(node) for node in hellos)]

    def _callable(self) -> list[str]:
        return [held.node for held in self._beliefs if held.node not in self._ways.uncallable]

    def _collected(self) -> list[str]:
        """Whom a peer that cannot be called asks in this period what they have to say: all in turn."""
        live = [node for node in self._callable() if node in self._beliefs.live]
        some = [live[(self._called + step) % len(live)] for step in range(min(self._ways.collect, len(live)))]
        self._called += len(some)
        return some

    def _judge_caller(self, node: str, now: float) -> None:
        """Who calls cannot be pinged, but should have called. If it never has, it is for others to say."""
        periods = CALLERS_PERIODS + len(self._callable()) // COLLECT + self.health
        if periods * self.pace.period_s < self.heard_s(node, now) < inf:
            self._beliefs.accuse(node, now)

    def _whose_turn(self) -> str | None:
        """The next of the live ones; each has its turn before anybody has a second one."""
        live = self._beliefs.live - self._ways.hidden
        if not live.intersection(self._turns):
            self._turns = sorted(live)
            self._rng.shuffle(self._turns)
        while self._turns:
            node = self._turns.pop()
            if node in live:
                return node
        return None

    def _ask_others(self, turn: _Turn) -> list[Effect]:
        turn.ask_at = inf
        others = [node for node in self._callable() if self._beliefs[node].state == "alive" and node != turn.target]
        some = self._some(others, self.pace.helpers)
        turn.asked = frozenset(some)
        me, mine = self.node, self.incarnation
        return [Tell(node, Probe(me, mine, turn.seq, turn.target, self._beliefs.news(node))) for node in some]

    def _judge(self, now: float) -> None:
        """The turn is over: draw the conclusion, about the target and about this peer itself."""
        turn, self._turn = self._turn, None
        if turn is None:
            return
        if turn.answered:
            self._feel(-1)
            return
        self._feel(len(turn.asked - turn.silent) if turn.asked else 1)  # the helpers are silent, too: it may be me
        self._beliefs.accuse(turn.target, now)

    # -------------------------------------------------------------------------------------------------------- helpers
    def _conclude(self) -> list[Note]:
        """Say who was given up or is there again, and take it into the order of turns."""
        self._feel(self._beliefs.doubts)
        turned, self._beliefs.turned, self._beliefs.doubts = self._beliefs.turned, [], 0
        notes = []
        for before, after in turned:
            if after.state in LIVE:
                if after.node not in self._turns:  # anywhere, so that it waits half a round in the mean
                    self._turns.insert(self._rng.randrange(len(self._turns) + 1), after.node)
                word = "is there" if before.incarnation == UNHEARD else "is back"
            elif after.state == "left":
                word = "has left"
            else:
                word = f"is dead: suspected by {', '.join(before.accusers)}" if before.accusers else "is dead"
            notes.append(Note("node", f"{after.node} {word}", 0, after.node))
        return notes

    def _feel(self, worse: int) -> None:
        self.health = min(max(self.health + worse, 0), self.pace.health_most)

    def _some(self, nodes: list[str], most: int) -> list[str]:
        return self._rng.sample(nodes, min(most, len(nodes)))

    def _hello(self, to: str) -> Tell:
        return Tell(to, Hello(self.node, self.incarnation, self._beliefs.news(to)))

    def _ping(self, to: str) -> Tell:
        self._seq += 1
        return Tell(to, Ping(self.node, self.incarnation, self._seq, self._beliefs.news(to)))

    def _pong(self, to: str, seq: int, of: str, behind: list[Rumour] | None = None) -> Tell:
        return Tell(to, Pong(self.node, self.incarnation, seq, of, self._beliefs.news(to, behind or ())))
