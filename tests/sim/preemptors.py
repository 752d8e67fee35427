"""Preemptor processes: the real core, with the shell's requests and their time-outs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from services.placement import messages as m
from services.preemptor import messages as pm
from services.preemptor.config import Config
from services.preemptor.core import Core
from services.preemptor.wall_clock import ClockSetBack, WallClock
from shared.contracts.commands import Answer, Evict
from shared.contracts.preemption import Plan, Reserved
from shared.model.gpu import Inventory
from tests.sim.clock import first_only
from tests.sim.feeds import FeedReader
from tests.sim.migrations import PATIENCE
from tests.sim.nats import Violation
from tests.sim.slices import FIXED_S, MIB_PER_S

if TYPE_CHECKING:
    from tests.sim.leaders import Leader
    from tests.sim.simulation import Simulation

ANSWER_S = 5.0
TICK_S = 0.5


class Preemptor:
    """Two of them may lead at once: the lease of one that hangs ends before it notices."""

    def __init__(self, simulation: Simulation, index: int, *, checkpoints: bool) -> None:
        self.simulation, self.name = simulation, f"preemptor-{index}"
        self._config = Config(
            leaving_s=10,
            deadline_s=15,
            protection_s=5,
            checkpoints=checkpoints,
            copied_mib_per_s=MIB_PER_S,
            copy_fixed_s=FIXED_S,
            defragmentation_gpu_seconds_per_hour=simulation.migrations.limit_gpu_s,
            reclaim_patience=PATIENCE,
        )
        self._life = 0
        self._plans = 0
        self._ahead_s = 0.0
        """By how much its machine's clock is ahead."""
        self.alive = False
        self._asked: set[str] = set()
        """The plans whose answer is awaited."""
        self.feed = FeedReader(
            simulation,
            self.name,
            awake=self._awake,
            session=lambda: self._life if self.alive else 0,
            snapshot=lambda facts, _: self._feed(pm.SnapshotSeen(facts)),
            facts=lambda facts: self._feed(pm.FactsSeen(facts)),
        )

    def start(self) -> None:
        if self.alive:
            return
        self.simulation.clock.tell(f"{self.name} starts")
        self._life += 1
        self.alive, self._asked = True, set()
        self.core = Core(self._config, self._new_id)
        self._clock = WallClock(lambda: self.simulation.clock.now + self._ahead_s)
        self.feed.begin()
        for node in self.simulation.nodes.values():
            self._hear_inventory_of(node.agent.gpus.inventory)
        for event in self.simulation.turns.protection.values():
            self._feed(event)
        self.feed.want_snapshot()
        self._tick()

    def crash(self) -> None:
        if self.alive:
            self.simulation.clock.tell(f"{self.name} crashes")
            self.alive = False
            self._life += 1

    def clock_is_set(self, seconds: float) -> None:
        """Its machine's clock is set forward, or back."""
        self.simulation.clock.tell(f"the clock of {self.name} is set {seconds:+.0f} s")
        self._ahead_s += seconds

    def _new_id(self) -> str:
        self._plans += 1
        return f"{self.name}-{self._plans}"

    def _awake(self, do: Callable[[], None]) -> Callable[[], None]:
        life = self._life
        return lambda: do() if self._life == life and self.alive else None

    def _soon(self, seconds: float, do: Callable[[], None]) -> None:
        self.simulation.clock.after(seconds, self._awake(do))

    def _tick(self) -> None:
        self._feed(pm.Tick())
        self.feed.tick()
        self._soon(TICK_S, self._tick)

    # --- in and out -------------------------------------------------------------------------------------------

    def _hear_inventory_of(self, inventory: Inventory | None) -> None:
        if inventory is not None:
            self._soon(0.01, lambda: self._feed(pm.InventorySeen(inventory)))

    def hear(self, event: m.InventorySeen) -> None:
        self._hear_inventory_of(event.inventory)

    def hears_public(self, event: pm.Input) -> None:
        self._awake(lambda: self._feed(event))()

    def answered(self, answer: Reserved) -> None:
        if answer.plan_id in self._asked:
            self._asked.discard(answer.plan_id)
            self._feed(pm.Answered(answer))

    def _feed(self, event: pm.Input) -> None:
        try:
            now = self._clock.now()
        except ClockSetBack:
            self.crash()  # as the service does: its work begins anew
            self.start()
            return
        for command in self.core.handle(event, now):
            self._carry_out(command)

    def _carry_out(self, command: pm.Command) -> None:
        simulation = self.simulation
        match command:
            case pm.Propose():
                self._propose(command.plan)
            case pm.ProposeAgain():
                simulation.clock.tell(f"{self.name} proposes {command.plan.plan_id} again")
                self._ask(command.plan)
            case pm.SaveProtection():
                simulation.turns.protection[command.record.owner] = pm.ProtectionRestored(command.record)
            case pm.Execute():
                self._execute(command.plan_id, command.evictions)
            case pm.CancelPlan():
                asked = m.AbandonAsked(command.plan_id, command.reason)
                for leader in simulation.leaders:
                    simulation.network.send(self.name, leader.name, lambda x=leader: x.hear(asked))  # type: ignore[misc]
            case pm.AskAdvice():
                self._ask_advice(command)

    def _propose(self, plan: Plan) -> None:
        simulation = self.simulation
        gains, loses = [b.name for b in plan.beneficiaries], [(v.name, v.action) for v in plan.victims]
        simulation.clock.tell(
            f"{self.name} proposes {plan.plan_id}{' (turn)' if plan.turn else ''}: {loses} for {gains}"
        )
        simulation.migrations.proposed(plan)
        self._ask(plan)

    def _ask(self, plan: Plan) -> None:
        simulation = self.simulation
        self._asked.add(plan.plan_id)
        for leader in simulation.leaders:
            simulation.network.send(self.name, leader.name, lambda x=leader: x.hear(m.ReserveAsked(plan)))  # type: ignore[misc]
        self._soon(ANSWER_S, lambda: self.answered(Reserved(plan_id=plan.plan_id, ok=False, again=True)))

    def _ask_advice(self, command: pm.AskAdvice) -> None:
        simulation, awake = self.simulation, self._awake
        advised = first_only(lambda advice: self._feed(pm.Advised(advice)))

        def ask(leader: Leader) -> None:
            leader.advise(
                command.query,
                lambda advice: simulation.network.send(leader.name, self.name, awake(lambda: advised(advice))),
            )

        for leader in simulation.leaders:
            simulation.network.send(self.name, leader.name, functools.partial(ask, leader))
        self._soon(ANSWER_S, lambda: advised(None))

    def _execute(self, plan_id: str, orders: tuple[Evict, ...]) -> None:
        if not orders:
            return
        simulation = self.simulation
        if self.core.executions[plan_id].plan.turn:
            raise Violation(f"T2: {plan_id} is for a turn, and evicts {[order.name for order in orders]}")
        uids = tuple(order.uid for order in orders)
        simulation.migrations.evicts(self.core.executions[plan_id].plan, uids)

        answered = first_only(lambda failed: self._feed(pm.Evicted(plan_id, uids, failed)))
        watcher = simulation.rng.choice(simulation.watchers)
        awake = self._awake

        def back(failed: tuple[Answer, ...]) -> None:
            simulation.network.send(watcher.name, self.name, awake(lambda: answered(failed)))

        simulation.network.send(self.name, watcher.name, lambda: watcher.evict(orders, back))
        self._soon(ANSWER_S, lambda: answered(tuple(Answer(uid=uid, outcome="unknown") for uid in uids)))
