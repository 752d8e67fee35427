"""Placement processes: the real core, behind the shell's habits (hint, session, feed follower) and the real log
protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from services.node_agent import messages as a
from services.placement import messages as m
from services.placement.config import Config
from services.placement.core import Core
from services.placement.explain.steps import finish
from services.placement.leader.log_protocol import LogProtocol, Pause, Request, Steps
from services.placement.queries.questions import advise_
from shared.bus.port import NoStream, Refused, Unknown
from shared.contracts.explain import Advice
from shared.contracts.facts import Fact
from shared.contracts.queries import AdviseQuery
from tests.sim import holds
from tests.sim.clock import first_only
from tests.sim.feeds import UNANSWERED_S, FeedReader
from tests.sim.nats import Violation
from tests.support.harness.invariants import check

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

T = TypeVar("T")

TTL_S = 5.0
EXCLUDE_AFTER_S = 6.0


class Leader:
    """One placement process. `core` is None while it is on standby; a frozen one processes its input later."""

    def __init__(self, simulation: Simulation, index: int) -> None:
        self.simulation, self.name = simulation, f"placement-{index}"
        self.core: Core | None = None
        self.alive, self.frozen = True, False
        self._kept: list[Callable[[], None]] = []
        self._life = 0
        self._session = 0
        """Another number with each session, and with the end of each."""
        self._in_session = False
        self._log = LogProtocol(self.name, "")
        self._held_back: list[m.Input] | None = None
        """Input that came while the term is renewed."""
        self._renew_at = 0.0
        self._held = False
        self._clock_skew_s = simulation.turns.clock_skew_s()
        self.ahead_s = 0.0
        """By how much its monotonic clock is ahead."""
        self.feed = FeedReader(
            simulation,
            self.name,
            awake=self.awake,
            session=lambda: self._session if self.core is not None else 0,
            snapshot=self._snapshot,
            facts=lambda facts: self._feed(m.FactsSeen(facts)),
        )
        simulation.clock.after(simulation.rng.uniform(0, 1), self._candidate)

    def _snapshot(self, facts: tuple[Fact, ...], seen: int) -> None:
        for part in m.parts_of(facts, 5):
            self._feed(part)
        self._feed(m.SnapshotSeen(facts, seen))

    # --- life -------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        self.simulation.clock.tell(f"{self.name} crashes")
        self.alive, self.frozen, self._kept = False, False, []
        self._life += 1
        self._reset()

    def restart(self) -> None:
        if not self.alive:
            self.simulation.clock.tell(f"{self.name} restarts")
            self.alive = True
            self._candidate()

    def freeze(self) -> None:
        self.simulation.clock.tell(f"{self.name} freezes")
        self.frozen = True

    def thaw(self) -> None:
        if self.frozen:
            self.simulation.clock.tell(f"{self.name} wakes")
            self.frozen = False
            if self.simulation.rng.random() < 0.5:
                self._renew_at = 0.0  # its renewal has become due in the meantime, perhaps under a successor
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
        self.simulation.clock.after(seconds, self.awake(do))

    def while_leading(self, do: Callable[[], None]) -> Callable[[], None]:
        session = self._session
        return self.awake(lambda: do() if self._session == session else None)

    # --- the hint and the session -----------------------------------------------------------------------------

    def _candidate(self) -> None:
        simulation = self.simulation
        if self.name not in simulation.network.cut:
            holder, until = simulation.hint
            if holder == self.name or until < simulation.clock.now:
                simulation.hint = (self.name, simulation.clock.now + TTL_S)
                if not self._held:
                    self._end("it is elected again")  # as the service does: an election starts a session
                self._held = True
                if not self._in_session:
                    self._begin_session()
            else:
                self._held = False
                if self._in_session and simulation.rng.random() < 0.5:  # it notices sooner or later
                    self._end("another holds the hint")
        self._soon(1.5, self._candidate)

    def _begin_session(self) -> None:
        self._session += 1
        self._in_session = True
        self._log = LogProtocol(self.name, f"{self.name}/{self._session}")
        self.simulation.nats.provision(slow=not self.simulation.network.calm and self.simulation.rng.random() < 0.3)
        self._run(self._log.take_term(), self._replay)

    def _replay(self, term: int) -> None:
        self.simulation.clock.tell(f"{self.name} takes term {term}")
        self._run(self._log.replay(), self._lead)

    def _lead(self, records: Any) -> None:
        config = Config(
            exclude_after_s=EXCLUDE_AFTER_S,
            resize_beyond_request=True,
            reserve_after_s=self.simulation.reserve_after_s,
            max_reservations=2,
            max_reserved_share=1.0,
        )
        self.core = Core(self.name, config)
        self.feed.begin()
        if not self.simulation.network.calm and self.simulation.rng.random() < 0.3:
            # Long enough for a second sync to be sent before the first is answered.
            for node in self.simulation.nodes.values():
                node.stall(self.simulation.rng.uniform(3.2, 7.0))
        self._feed(m.TermTaken(self._log.term, records, self._log.found_mark))
        for node in self.simulation.nodes.values():
            node.tell_inventory(self)
        self._soon(0.5, self.while_leading(self._tick))
        self._renew_at = self.simulation.clock.now + self.simulation.rng.uniform(5.0, 60.0)

    def _now(self) -> m.Tick:
        """A tick with this machine's clock, which may differ from others'."""
        return m.Tick(self.simulation.clock.now + self._clock_skew_s)

    def wall_jumped(self, seconds: float) -> None:
        self._clock_skew_s += seconds

    def _renew(self) -> None:
        """As the service does: no other input is processed until the log has answered."""
        self._renew_at = self.simulation.clock.now + self.simulation.rng.uniform(5.0, 60.0)
        self._held_back = []

        def renewed(term: int) -> None:
            self.simulation.clock.tell(f"{self.name} renews as term {term}")
            held_back, self._held_back = self._held_back, None
            self._feed(m.TermRenewed(term))
            for event in held_back or ():
                self._feed(event)

        self._run(self._log.renew_term(), renewed)

    @property
    def term(self) -> int:
        return self._log.term

    def _run(self, steps: Steps[T], done: Callable[[T], None]) -> None:
        """Runs steps of the log protocol over the network. A request that is not answered in time may have happened, or
        yet happen."""
        simulation, session = self.simulation, self._session

        def go(resume: Callable[[], Request]) -> None:
            try:
                ask(resume())
            except StopIteration as end:
                done(end.value)
            except (Refused, NoStream, Unknown) as error:
                self._end(f"the log: {error}")

        def ask(request: Request) -> None:
            if isinstance(request, Pause):
                self._soon(0.5, self.while_leading(lambda: go(lambda: steps.send(None))))
                return
            answered = first_only(lambda resume: go(resume) if self._session == session else None)

            def at_server() -> None:
                try:
                    answer = simulation.nats.answer(request)
                except (Refused, NoStream) as error:
                    back(lambda error=error: steps.throw(error))
                else:
                    back(lambda: steps.send(answer))

            def back(resume: Callable[[], Request]) -> None:
                simulation.network.send("nats", self.name, self.awake(lambda: answered(resume)))

            simulation.network.send(self.name, "nats", at_server)
            self._soon(UNANSWERED_S, lambda: answered(lambda: steps.throw(Unknown("no answer"))))

        go(lambda: next(steps))

    def _end(self, why: str) -> None:
        if self._in_session:
            self.simulation.clock.tell(f"{self.name} ends its session: {why}")
            self._reset()

    def _reset(self) -> None:
        self.core, self._held_back, self._in_session = None, None, False
        self._session += 1

    def _tick(self) -> None:
        if self.core is None:
            return
        self._feed(self._now())
        if (
            self.core is not None
            and self._held_back is None
            and self.core.may_renew
            and self.simulation.clock.now >= self._renew_at
        ):
            self._renew()
        self.feed.tick()
        self._soon(0.5, self.while_leading(self._tick))

    # --- in and out -------------------------------------------------------------------------------------------

    def _feed(self, event: m.Input) -> None:
        if self.core is None:
            return
        if self._held_back is not None:
            self._held_back.append(event)
            return
        commands = self.core.handle(event, self.simulation.clock.now + self.ahead_s)
        try:
            check(self.core, commands)
        except AssertionError as broken:
            raise Violation(str(broken)) from broken
        self.simulation.ever_excluded |= self.core.recovery.excluded.keys()
        for command in commands:
            if self.core is not None:
                self._carry_out(command)

    def hear(self, event: m.Input) -> None:
        """A message from the bus, for the session that leads here."""
        self.awake(lambda: self._feed(event))()

    def advise(self, query: AdviseQuery, answer: Callable[[Advice | None], None]) -> None:
        """Answers which migrations would let a pod fit, if a session leads here."""

        def ask() -> None:
            if self.core is not None and self.core.phase == "leading":
                answer(finish(advise_(self.core, query, self.simulation.clock.now + self._clock_skew_s)).advice)

        self.awake(ask)()

    def _carry_out(self, command: m.Command) -> None:
        simulation = self.simulation
        match command:
            case m.Append():
                self._run(self._log.append(command.record), lambda sequence: self._feed(m.Appended(sequence)))
            case m.SendBinds():
                for bind in command.binds:
                    simulation.clock.tell(
                        f"{self.name} sends the binding of {bind.name} at {bind.resource_version} to {bind.node}"
                    )
                if simulation.network.lost_orders:
                    return
                watcher = simulation.rng.choice(simulation.watchers)
                sequence = command.sequence
                simulation.network.send(self.name, watcher.name, lambda: watcher.bind(command.binds, sequence, self))
            case m.SendPatches():
                watcher = simulation.rng.choice(simulation.watchers)
                simulation.network.send(self.name, watcher.name, lambda: watcher.patch(command.patches, self))
            case m.SendGrant():
                simulation.to_node(self, command.node, a.GrantReceived(command.grant))
            case m.SendRelease():
                simulation.to_node(self, command.node, a.ReleaseReceived(command.release))
            case m.SendSync():
                simulation.to_node(self, command.sync.node, a.SyncReceived(command.sync))
            case m.SendHold():
                holds.ask(simulation, self, command)
            case m.SendReleasesSeen():
                simulation.to_node(self, command.node, a.ReleasesBooked(command.grant_ids))
            case m.TakeSnapshot():
                self.feed.want_snapshot()
            case m.Again():
                self._soon(0.0, lambda: self._feed(self._now()))
            case m.AnswerPlan() | m.Publish():
                simulation.turns.placement_says(command, self)
            case m.Later():
                self._soon(command.seconds, self.while_leading(lambda: self._feed(m.Wake())))
            case m.CheckTerm():
                self._check_term()
            case m.BeginLogAnew():
                simulation.clock.tell(f"{self.name} deletes the log: {command.reason}")
                self._run(self._log.begin_anew(command.first_sequence), lambda _: self._end("the log is deleted"))

    def _check_term(self) -> None:
        def seen() -> None:
            if self.simulation.nats.newest_term != self.term:
                self._end("the log has a newer term")

        self.simulation.network.send(self.name, "nats", self.while_leading(seen))
