"""Placement processes: the real core, behind the shell's habits (hint, term, append and read back, feed follower)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from services.placement import messages as m
from services.placement.core import Core
from services.placement.settings import Settings
from shared.bus.feed import Follower, Gap
from shared.contracts.base import decode
from shared.contracts.facts import FeedBatch, SnapshotPage
from shared.contracts.log import ReadyRecord
from tests.sim.log import Refused

if TYPE_CHECKING:
    from tests.sim.world import World

TTL_S = 5.0
UNANSWERED_S = 2.0
RENEW_S = 120.0
SILENCE_S = 5.0


class Leader:
    """One placement process. `core` is None while it stands by; a frozen one keeps what comes for later."""

    def __init__(self, world: World, index: int) -> None:
        self.world, self.name = world, f"placement-{index}"
        self.core: Core | None = None
        self.term = 0
        self.alive, self.frozen = True, False
        self._kept: list[Callable[[], None]] = []
        self._life = 0
        self._reign = 0
        self._last = 0
        self._heard = 0.0
        self._held = False
        self._asked = 0
        self._renewing = False
        self._follower = Follower()
        world.clock.after(world.rng.uniform(0, 1), self._candidate)

    # --- life -------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        self.world.clock.tell(f"{self.name} crashes")
        self.alive, self.frozen, self.core, self._kept = False, False, None, []
        self._life += 1
        self._reign += 1

    def restart(self) -> None:
        if not self.alive:
            self.world.clock.tell(f"{self.name} restarts")
            self.alive = True
            self._candidate()

    def freeze(self) -> None:
        self.world.clock.tell(f"{self.name} freezes")
        self.frozen = True

    def thaw(self) -> None:
        if self.frozen:
            self.world.clock.tell(f"{self.name} wakes")
            self.frozen = False
            kept, self._kept = self._kept, []
            for do in kept:
                do()

    def awake(self, do: Callable[[], None]) -> Callable[[], None]:
        """`do`, if this process still lives then; later if it is frozen."""
        life = self._life

        def guarded() -> None:
            if self._life != life or not self.alive:
                return
            if self.frozen:
                self._kept.append(guarded)
            else:
                do()

        return guarded

    def _soon(self, seconds: float, do: Callable[[], None]) -> None:
        self.world.clock.after(seconds, self.awake(do))

    def reigning(self, do: Callable[[], None]) -> Callable[[], None]:
        reign = self._reign
        return self.awake(lambda: do() if self._reign == reign else None)

    # --- the hint and the term --------------------------------------------------------------------------------

    def _candidate(self) -> None:
        world = self.world
        if self.name not in world.network.cut:
            holder, until = world.hint
            if holder == self.name or until < world.clock.now:
                world.hint = (self.name, world.clock.now + TTL_S)
                if not self._held:
                    self._end("it is elected anew")  # as the shell does: an election begins a term
                self._held = True
                if self.core is None:
                    self._take_term()
            else:
                self._held = False
                if self.core is not None and world.rng.random() < 0.5:  # it notices sooner or later
                    self._end("another holds the hint")
        self._soon(1.5, self._candidate)

    def _take_term(self) -> None:
        log = self.world.log
        try:
            self.term = log.append("term", self.name, log.newest_term)
        except Refused:
            return
        self._reign += 1
        self._last = self.term
        self.world.clock.tell(f"{self.name} takes term {self.term}")
        self.core = Core(self.name, Settings())
        self._follower = Follower()
        records = log.before(self.term)
        self._feed(m.TermTaken(self.term, records))
        for node in self.world.nodes.values():
            node.tell_inventory(self)
        reign = self._reign
        self._soon(0.5, lambda: self._ticks(reign))
        self._soon(RENEW_S, lambda: self._renew(reign))

    def _renew(self, reign: int) -> None:
        if self._reign != reign or self.core is None:
            return
        if self.core.may_renew:
            try:
                self.term = self.world.log.append("term", self.name, self.term)
            except Refused:
                self._end("its renewal was refused")
                return
            self._last = self.term
            self.world.clock.tell(f"{self.name} renews as term {self.term}")
            self._feed(m.TermRenewed(self.term))
        self._soon(RENEW_S if not self.core.may_renew else 1.0, lambda: self._renew(reign))

    def _end(self, why: str) -> None:
        if self.core is not None:
            self.world.clock.tell(f"{self.name} ends its reign: {why}")
            self.core = None
            self._reign += 1

    def _ticks(self, reign: int) -> None:
        if self._reign == reign and self.core is not None:
            self._feed(m.Tick())
            if self._follower.epoch and self.world.clock.now - self._heard > SILENCE_S:
                self.world.clock.tell(f"{self.name} gives up the silent feed {self._follower.epoch}")
                self._want_snapshot()
            self._soon(0.5, lambda: self._ticks(reign))

    # --- in and out -------------------------------------------------------------------------------------------

    def _feed(self, event: m.Input) -> None:
        if self.core is None:
            return
        for command in self.core.handle(event, self.world.clock.now):
            if self.core is not None:
                self._carry_out(command)

    def hear(self, event: m.Input) -> None:
        """A message from the bus, for whoever reigns here."""
        self.awake(lambda: self._feed(event))()

    def batch(self, payload: bytes) -> None:
        def take() -> None:
            if self.core is None:
                return
            batch = decode(payload, FeedBatch)
            if batch.epoch == self._follower.epoch:
                self._heard = self.world.clock.now
            try:
                facts = self._follower.batch(batch)
            except Gap:
                self.world.clock.tell(f"{self.name} misses a batch")
                self._want_snapshot()
                return
            if facts:
                self._feed(m.FactsSeen(facts))

        self.awake(take)()

    def _want_snapshot(self) -> None:
        self._follower.forget()
        self._ask_snapshot(self._reign)

    def _ask_snapshot(self, reign: int) -> None:
        if self._reign != reign or self._follower.epoch:
            return
        world = self.world
        watcher = world.rng.choice(world.watchers)
        self._asked += 1
        asked = self._asked  # a request has one answer, and one that comes after its time-out is no answer to the next

        def answer(page: SnapshotPage) -> None:
            def take() -> None:
                if self._reign != reign or self._follower.epoch or self.core is None or asked != self._asked:
                    return
                self._heard = world.clock.now
                self._feed(m.SnapshotSeen(page.facts, page.log_sequence_seen))
                try:
                    following = self._follower.snapshot(page.epoch, page.number)
                except Gap:
                    self._want_snapshot()
                    return
                if following:
                    self._feed(m.FactsSeen(tuple(following)))

            world.network.send(watcher.name, self.name, self.awake(take))

        world.network.send(self.name, watcher.name, lambda: watcher.snapshot(answer))
        self._soon(UNANSWERED_S, lambda: self._ask_snapshot(reign))

    def _carry_out(self, command: m.Command) -> None:
        world = self.world
        match command:
            case m.Append():
                self._append(command.record, self._reign)
            case m.SendBinds():
                for bind in command.binds:
                    world.clock.tell(f"{self.name} sends the binding of {bind.name} at {bind.resource_version} to {bind.node}")
                watcher = world.rng.choice(world.watchers)
                sequence = command.sequence
                world.network.send(self.name, watcher.name, lambda: watcher.bind(command.binds, sequence, self))
            case m.SendPatches():
                watcher = world.rng.choice(world.watchers)
                world.network.send(self.name, watcher.name, lambda: watcher.patch(command.patches))
            case m.SendGrant():
                world.to_node(self, command.node, lambda node: node.grant(command.grant, self))
            case m.SendRelease():
                world.to_node(self, command.node, lambda node: node.release(command.release))
            case m.SendSync():
                world.to_node(self, command.sync.node, lambda node: node.sync(command.sync, self))
            case m.SendReleasesSeen():
                world.to_node(self, command.node, lambda node: node.booked(command.grant_ids))
            case m.TakeSnapshot():
                self._want_snapshot()
            case m.Again():
                self._soon(0.0, lambda: self._feed(m.Tick()))
            case m.Later():
                self._soon(command.seconds, self.reigning(lambda: self._feed(m.Wake())))
            case m.StepDown():
                self._end(command.reason)

    def _append(self, record: Any, reign: int) -> None:
        """As the shell's log book: a time-out is unknown, so look, and only then append again."""
        world, term = self.world, self.term
        subject = "ready" if isinstance(record, ReadyRecord) else "decisions"
        state = {"answered": False}

        def at_server() -> None:
            try:
                sequence = world.log.append(subject, record, term)
            except Refused:
                world.network.send("nats", self.name, self.awake(lambda: answered(None)))
                return
            world.network.send("nats", self.name, self.awake(lambda: answered(sequence)))

        def answered(sequence: int | None) -> None:
            if state["answered"] or self._reign != reign:
                return
            state["answered"] = True
            if sequence is None:
                self._end(f"its append under {term} was refused")
            else:
                self._last = sequence
                self._feed(m.Appended(sequence))

        def unanswered() -> None:
            if state["answered"] or self._reign != reign:
                return
            if self.name in world.network.cut:
                self._soon(UNANSWERED_S, unanswered)
                return
            found = world.log.find(subject, record, self._last)
            if found is not None:
                answered(found)
            else:
                state["answered"] = True
                self._append(record, reign)

        world.network.send(self.name, "nats", at_server)
        self._soon(UNANSWERED_S, unanswered)
