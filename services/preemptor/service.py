"""Connects the preemptor's core to the bus: feed, placement and watcher. Decides nothing."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

from services.preemptor import messages as m
from services.preemptor.config import Config
from services.preemptor.core import Core
from services.preemptor.traces import PlanTraces
from services.preemptor.wall_clock import ClockSetBack, WallClock
from shared.bus.feed import Feed
from shared.bus.port import BusError, Incoming, KvEntry, Subscription
from shared.contracts import commands, queries, subjects
from shared.contracts import preemption as pre
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.envelope import unwrap
from shared.contracts.facts import Fact
from shared.contracts.samples import UsageSample
from shared.model.gpu import Inventory
from shared.model.strategies import registered
from shared.scheduling.filters import filters
from shared.service import Context, Leadership, Service

TICK_S = 0.1
ANSWER_S = 15.0
_AGAIN_S = 1.0


class Preemptor(Service):
    """Finds the least disruptive set of victims that lets a pod or a gang fit.

    One instance proposes. The others keep their books up to date on standby: reading a cluster takes longer than a
    short loss of leadership.
    """

    name: ClassVar[str] = "preemptor"
    config_type: ClassVar[type] = Config
    knows_cluster: ClassVar[bool] = True

    async def start(self, ctx: Context) -> None:
        filters(), registered()  # a plug-in that cannot be used fails now, and not in the middle of a plan
        self._ctx = ctx
        self._leads = False
        self._leadership = Leadership(ctx.bus, "preemptor", ctx.instance, on_elected=self._elected, on_lost=self._lost)
        self._plans = ctx.metrics.counter("kerf_preemptor_plans_total", "Plans, by outcome.", ("outcome",))
        self._advice = ctx.metrics.counter(
            "kerf_preemptor_advice_total", "Advice requested from placement, by outcome.", ("outcome",)
        )
        self._evictions = ctx.metrics.counter(
            "kerf_preemptor_evictions_total", "Evictions requested, by outcome.", ("outcome",)
        )
        ctx.metrics.observe_by("kerf_preemptor_leader", "1 on the instance that leads.", lambda: float(self._leads))
        self._current_work: _Work | None = None
        protected = "Owners whose pods are protected because one of them was preempted."
        ctx.metrics.observe_by("kerf_preemptor_protected_owners", protected, self._count_protected)
        ctx.metrics.observe_by(
            "kerf_preemptor_immune_owners", f"Former name, until 0.3. {protected}", self._count_protected
        )
        ctx.health.set("role", ok=True, detail="standby")
        ctx.spawn(self._work(), name="work")
        ctx.spawn(self._leadership.run(), name="leadership")

    async def drain(self) -> None:
        await self._lost()
        await self._leadership.release()

    async def _elected(self) -> None:
        self._leads = True
        self._ctx.health.set("role", ok=True, detail="works")

    async def _lost(self) -> None:
        self._leads = False
        self._ctx.health.set("role", ok=True, detail="standby")

    def _count_protected(self) -> float:
        return (
            0.0
            if self._current_work is None
            else float(self._current_work.core.protection.count_protected(self._current_work.clock.latest))
        )

    async def _work(self) -> None:
        while True:
            try:
                self._current_work = _Work(self._ctx, (self._plans, self._evictions, self._advice), lambda: self._leads)
                await self._current_work.run()
            except BusError as error:
                self._ctx.log.warning("preemptor_interrupted", error=str(error))
                await asyncio.sleep(_AGAIN_S)


class _Work:
    """Runs a core from an empty book to the end of one connection, or until the machine's clock is set back.

    Its state is discarded; placement's reservations last.
    """

    def __init__(self, ctx: Context, counters: tuple[Any, Any, Any], leads: Callable[[], bool]) -> None:
        """`counters`: the metrics of plans, evictions and advice."""
        self.ctx, self.bus, self._leads = ctx, ctx.bus, leads
        self._plans, self._evictions, self._advice = counters
        self._traces = PlanTraces(ctx.telemetry)
        self.core = Core(ctx.config, lambda: f"{ctx.instance}-{secrets.token_hex(4)}")
        self.clock = WallClock()
        self._inbox: asyncio.Queue[m.Input] = asyncio.Queue()
        self._saves: set[asyncio.Task[None]] = set()
        """Records that are being persisted."""
        self._ticking = False
        """Whether a tick is queued in the inbox."""
        self.feed = Feed(self.bus, self._snapshot, self._facts)

    async def run(self) -> None:
        subscriptions: list[Subscription] = []
        try:
            async for one in self._listen():
                subscriptions.append(one)
            async with asyncio.TaskGroup() as group:
                self.feed.want_snapshot()
                group.create_task(self.feed.run())
                group.create_task(self._ticks())
                while True:
                    event = await self._inbox.get()
                    self._ticking = self._ticking and not isinstance(event, m.Tick)
                    for command in self.core.handle(event, self.clock.now()):
                        self._carry_out(command, group)
                    # With a full inbox no other task would run, and leadership has to be renewed.
                    await asyncio.sleep(0)
        except* ClockSetBack as errors:
            self.ctx.log.warning("preemptor_begins_anew", why=str(errors.exceptions[0]))
        finally:
            for subscription in subscriptions:
                await subscription.stop()

    async def _listen(self) -> AsyncIterator[Subscription]:
        """One after another: of those before one that fails none is to be left behind."""
        yield await self.bus.kv(subjects.KV_NODES).watch(self._inventory)
        yield await self.bus.kv(subjects.KV_SPARED).watch(self._protection_restored)
        yield await self.bus.subscribe(subjects.REJECTED, self._heard)
        yield await self.bus.subscribe(queries.PREEMPT.subject, self._dry_run)
        yield await self.bus.subscribe(subjects.GRANTS_ENDED, self._heard)
        yield await self.bus.subscribe(subjects.PREEMPTIONS, self._heard)
        if self.ctx.config.shrinks or self.ctx.config.autoscale:  # thousands of nodes publish it every few seconds
            yield await self.bus.subscribe(subjects.USAGE_ALL, self._sampled)

    async def _snapshot(self, facts: tuple[Fact, ...], seen: int) -> None:  # noqa: ARG002 - the log is placement's
        self._inbox.put_nowait(m.SnapshotSeen(facts))

    async def _facts(self, facts: tuple[Fact, ...]) -> None:
        self._inbox.put_nowait(m.FactsSeen(facts))

    async def _inventory(self, entry: KvEntry) -> None:
        if entry.value is None:
            self._inbox.put_nowait(m.AgentLost(subjects.untoken(entry.key)))
        else:
            inventory = decode(entry.value, Inventory)
            subjects.check_sender(f"{subjects.KV_NODES}.{entry.key}", inventory.node)
            self._inbox.put_nowait(m.InventorySeen(inventory))

    async def _protection_restored(self, entry: KvEntry) -> None:
        if entry.value is not None:  # otherwise it has expired, which the core notices by itself
            self._inbox.put_nowait(m.ProtectionRestored(decode(entry.value, pre.Spared)))

    async def _heard(self, incoming: Incoming) -> None:
        _, event = unwrap(incoming.payload)
        heard = m.to_input(event)
        # It is published under each namespace that it concerns, and counted once.
        if isinstance(heard, m.Ended) and incoming.subject.endswith(
            f".{subjects.token(event.plan.beneficiaries[0].namespace)}"
        ):
            self._plans.add(self._leads(), "executed" if heard.executed else "abandoned")
        if isinstance(heard, m.Ended):
            self._traces.end(heard.plan_id)
        if heard is not None:
            self._inbox.put_nowait(heard)

    async def _sampled(self, incoming: Incoming) -> None:
        sample = decode(incoming.payload, UsageSample)
        subjects.check_sender(incoming.subject, sample.node)
        self._inbox.put_nowait(m.Sampled(sample))

    async def _dry_run(self, incoming: Incoming) -> None:
        if not self._leads():
            return
        try:
            query = decode(incoming.payload, pre.PreemptQuery)
            answer = (
                self.core.dry_run(query.namespace, query.name, self.clock.latest)
                if query.pod is None
                else self.core.dry_run_of(query.pod, self.clock.latest)
            )
        except ContractError as error:
            answer = pre.PreemptAnswer(error=str(error))
        await self.bus.respond(incoming, encode(answer))

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if not self._ticking:  # planning may take longer than a tick; queued ticks would repeat the same work
                self._ticking = True
                self._inbox.put_nowait(m.Tick(proposes=self._leads()))

    def _carry_out(self, command: m.Command, group: asyncio.TaskGroup) -> None:
        match command:
            case m.Propose():
                self._traces.propose(command.plan)
                for namespace, uid in command.plan.concerns().items():
                    self.ctx.emit(
                        command.event, namespace=namespace, about=uid, traceparent=self.ctx.telemetry.traceparent(uid)
                    )
                self._plans.add(1, "proposed")
                group.create_task(self._reserve(command.plan))
            case m.ProposeAgain():
                group.create_task(self._reserve(command.plan))
            case m.SaveProtection() if self._leads():
                save = group.create_task(self._save_protection(command))
                self._saves.add(save)
                save.add_done_callback(self._saves.discard)
            case m.Execute() if self._leads():  # as above: what is to protect the replacements is persisted
                group.create_task(self._evict(command))
            case m.Execute():  # by a tick before the lead was lost; to be requested again if this instance leads again
                self._inbox.put_nowait(_evicted(command, _unanswered(command)))
            case m.CancelPlan():
                group.create_task(self._abandon(command))
            case m.Resize():
                group.create_task(self._resize(command))
            case m.AskAdvice():
                group.create_task(self._ask_advice(command))

    async def _reserve(self, plan: pre.Plan) -> None:
        await self._saved()
        try:
            answer = decode(
                await self.bus.request(subjects.CMD_RESERVE, encode(pre.Reserve(plan=plan)), timeout_s=ANSWER_S),
                pre.Reserved,
            )
        except BusError as error:
            # It may be reserved, so the core proposes the same plan again.
            self.ctx.log.warning("reserve_unanswered", plan=plan.plan_id, error=str(error))
            self._plans.add(1, "unanswered")
            answer = pre.Reserved(plan_id=plan.plan_id, ok=False, again=True)
        if not answer.ok and not answer.again:
            self._plans.add(1, "refused")
            self.ctx.log.info("plan_refused", plan=plan.plan_id, reason=answer.reason)
        self._inbox.put_nowait(m.Answered(answer))

    async def _saved(self) -> None:
        """Returns when all records that were to be persisted until now have been, or could not be."""
        if self._saves:
            await asyncio.wait(set(self._saves))

    async def _save_protection(self, command: m.SaveProtection) -> None:
        try:
            await self.bus.kv(subjects.KV_SPARED).put(
                subjects.token(command.record.owner), encode(command.record), ttl_s=command.for_s
            )
        except BusError as error:
            # The next leader may preempt a replacement a little early, which is no reason to stop.
            self.ctx.log.warning("protection_not_saved", owner=command.record.owner, error=str(error))

    async def _resize(self, command: m.Resize) -> None:
        order = command.order
        try:
            (answer,) = decode(
                await self.bus.request(subjects.CMD_RESIZE, encode(order), timeout_s=ANSWER_S), commands.Answers
            ).answers
        except BusError as error:
            self.ctx.log.warning("resize_unanswered", namespace=order.namespace, pod=order.name, error=str(error))
            return
        self.ctx.log.info(
            "autoscaled", namespace=order.namespace, pod=order.name, to=order.resize, outcome=answer.outcome
        )

    async def _ask_advice(self, command: m.AskAdvice) -> None:
        try:
            answer = decode(
                await self.bus.request(queries.ADVISE.subject, encode(command.query), timeout_s=ANSWER_S),
                queries.AdviseAnswer,
            )
            outcome = "none" if answer.advice is None or not answer.advice.moves else "moves"
        except BusError as error:
            self.ctx.log.warning("advice_unanswered", namespace=command.namespace, pod=command.name, error=str(error))
            answer, outcome = queries.AdviseAnswer(), "unanswered"
        self._advice.add(1, outcome)
        self._inbox.put_nowait(m.Advised(answer.advice))

    async def _evict(self, command: m.Execute) -> None:
        await self._saved()
        batch, start_ns = commands.EvictBatch(evictions=command.evictions), self.ctx.telemetry.now_ns()
        try:
            answers = decode(
                await self.bus.request(subjects.CMD_EVICT, encode(batch), timeout_s=ANSWER_S), commands.Answers
            ).answers
        except BusError as error:
            self.ctx.log.warning("evictions_unanswered", plan=command.plan_id, error=str(error))
            answers = _unanswered(command)
        outcomes = {e.uid: "done" for e in command.evictions} | {a.uid: a.outcome for a in answers}
        self._traces.evict(command.plan_id, outcomes, start_ns)
        for answer in answers:
            self._evictions.add(1, answer.outcome)
        self._evictions.add(len(command.evictions) - len(answers), "done")
        self._inbox.put_nowait(_evicted(command, answers))

    async def _abandon(self, command: m.CancelPlan) -> None:
        self._traces.cancel(command.plan_id, command.reason)
        order = pre.Abandon(plan_id=command.plan_id, reason=command.reason)
        try:
            await self.bus.request(subjects.CMD_ABANDON, encode(order), timeout_s=ANSWER_S)
        except BusError as error:
            # The plan's deadline has the same effect.
            self.ctx.log.warning("abandon_unanswered", plan=command.plan_id, error=str(error))


def _evicted(command: m.Execute, answers: tuple[commands.Answer, ...]) -> m.Evicted:
    return m.Evicted(command.plan_id, tuple(e.uid for e in command.evictions), answers)


def _unanswered(command: m.Execute) -> tuple[commands.Answer, ...]:
    return tuple(commands.Answer(uid=e.uid, outcome="unknown") for e in command.evictions)


SERVICE = Preemptor
