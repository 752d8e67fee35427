"""One leader session on the bus: inputs from subscriptions to the core, commands of the core to the bus. No decisions
here."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from services.placement import messages as m
from services.placement.core import Core
from services.placement.leader.capacity_wanted import CapacityWatch
from services.placement.leader.log_client import LogClient
from services.placement.leader.traces import Traces
from services.placement.protocol.write_batcher import PART_MOST, RECORD_MOST_BYTES
from services.placement.queries.responder import responder
from shared.bus.feed import Feed
from shared.bus.port import BusError, Incoming, KvEntry, NoResponder, NotTaken, Refused, Subscription, Unknown
from shared.bus.tasks import end
from shared.contracts import commands, node_commands, preemption, queries, subjects
from shared.contracts.base import ContractError, Message, decode, encode
from shared.contracts.events import CapacityWanted, PolicyRead, TermTaken
from shared.contracts.facts import Fact
from shared.contracts.log import DecisionBatch, TermRecord
from shared.contracts.samples import UsageSample
from shared.model.gpu import Inventory
from shared.service import Context

TICK_S = 0.1
ANSWER_S = 15.0
HOLD_ANSWER_S = 20.0
"""A node may have to finish other suspensions before it brings a gang's members to a stop."""
TERM_AGAIN_S = 1.0
_YIELD_EVERY = 32
EXCLUDED_NAMED = 5


class LogDeleted(Refused):
    """The log had lost records and is deleted. The session is over, and the next one begins on an empty log."""


class LeaderSession:
    """A leader session, from the term that it took to its end. Its state is discarded then."""

    def __init__(self, ctx: Context, log_client: LogClient) -> None:
        self.ctx, self.bus, self.log_client = ctx, ctx.bus, log_client
        config = ctx.config
        self.core = Core(
            ctx.instance,
            config,
            stopwatch=time.perf_counter,
            trace_of=ctx.telemetry.traceparent,
        )
        self._traces = Traces(ctx.telemetry)
        self._inbox: asyncio.Queue[m.Input] = asyncio.Queue()
        self.feed = Feed(self.bus, self._snapshot, self._facts)
        self._subscriptions: list[Subscription] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._renew_at = asyncio.get_running_loop().time() + config.renew_term_s
        self._decisions = 0
        """Logged since the term was taken or renewed."""
        self._orders_unsent = 0
        """Orders to nodes in a row that the bus did not take."""
        self._excluded: dict[str, str] = {}
        self._askers: dict[str, list[Incoming]] = {}
        """By plan id: the requests that wait for its result."""

    async def run(self) -> None:
        """Raises Refused or BusError when the session must end, LogDeleted if the next one should begin at once."""
        records = await self.log_client.replay()
        await self._listen()
        self._spawn(self.feed.run())
        self._spawn(self._ticks())
        if self.ctx.config.autoscaler:
            self._spawn(CapacityWatch(self.core, self._capacity_wanted).run())
        self._put(m.TermTaken(self.log_client.term, records, self.log_client.found_mark))
        turns = 0
        while True:
            if self._failure.done():
                raise Refused(self._failure.result())
            event = await self._inbox.get()
            await self._carry_out(self.core.handle(event, time.monotonic()))
            turns += 1
            if turns % _YIELD_EVERY == 0 or isinstance(event, m.SnapshotPart):
                await asyncio.sleep(0)  # a full inbox never waits, and the bus must be served
            if isinstance(event, m.Tick):
                self._name_excluded()
                await self._renew_if_due()

    @property
    def waiting(self) -> int:
        """Inputs that the core has not taken yet."""
        return self._inbox.qsize()

    async def close(self) -> None:
        self.ctx.health.clear("excluded")
        await end(*self._tasks)
        while self._subscriptions:
            await self._subscriptions.pop().stop()

    # --- in ---------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        bus, listen = self.bus, self._subscriptions.append
        listen(await bus.subscribe(subjects.HEARTBEAT_ALL, self._heartbeat))
        listen(await bus.subscribe(subjects.RELEASES_ALL, self._released))
        if self.ctx.config.learn_use:
            listen(await bus.subscribe(subjects.USAGE_ALL, self._sampled))
        listen(await bus.subscribe(subjects.ack(self.ctx.instance, "grant", "*"), self._grant_answered))
        listen(await bus.subscribe(subjects.ack(self.ctx.instance, "sync", "*"), self._sync_answered))
        listen(await bus.kv(subjects.KV_NODES).watch(self._inventory))
        for query in (query for query in queries.QUERIES if query.receivers == "placement"):
            listen(await bus.subscribe(query.subject, responder(self.core, bus, query)))
        listen(await bus.subscribe(subjects.CMD_RESERVE, self._reserve))
        listen(await bus.subscribe(subjects.CMD_ABANDON, self._abandon))

    async def _snapshot(self, facts: tuple[Fact, ...], seen: int) -> None:
        if self.core.phase == "listing":
            for part in m.parts_of(facts):
                self._put(part)
        self._put(m.SnapshotSeen(facts, seen))

    async def _facts(self, facts: tuple[Fact, ...]) -> None:
        self._put(m.FactsSeen(facts))

    async def _inventory(self, entry: KvEntry) -> None:
        if entry.value is None:
            self._put(m.AgentLost(subjects.untoken(entry.key)))
        else:
            inventory = decode(entry.value, Inventory)
            if entry.key != subjects.token(inventory.node):
                raise ContractError(
                    f"the inventory under {entry.key} speaks of node {inventory.node!r}; an agent speaks of its "
                    "own alone"
                )
            self._put(m.InventorySeen(inventory))

    async def _heartbeat(self, incoming: Incoming) -> None:
        nodes = decode(incoming.payload, node_commands.Beat).nodes
        if incoming.subject != subjects.HEARTBEAT_HOLLOW:
            subjects.check_sender(incoming.subject, *nodes)
        self._put(m.BeatSeen(nodes))

    async def _sampled(self, incoming: Incoming) -> None:
        sample = decode(incoming.payload, UsageSample)
        subjects.check_sender(incoming.subject, sample.node)
        self._put(m.Sampled(sample))

    async def _released(self, incoming: Incoming) -> None:
        released = decode(incoming.payload, node_commands.Released)
        self._put(m.ReleaseSeen(subjects.sender(incoming.subject), released.grant_id, released.reason))

    async def _grant_answered(self, incoming: Incoming) -> None:
        if not incoming.payload:
            return  # The server's answer that no agent listens there. The grant is repeated until one does.
        answer = decode(incoming.payload, node_commands.Accepted)
        subjects.check_sender(incoming.subject, answer.node)
        if not answer.ok:
            self.ctx.log.warning("grant_refused_by_node", node=answer.node, grant=answer.grant_id, reason=answer.reason)
        self._put(
            m.GrantAcknowledged(
                answer.node,
                answer.grant_id,
                answer.ok,
                answer.reason,
                suspension=answer.suspension,
                dead=answer.dead,
                amendment=answer.amendment,
                shrunk=answer.shrunk,
                not_resized=answer.not_resized,
                number=answer.number,
                whole=answer.whole,
                cannot_checkpoint=answer.cannot_checkpoint,
                cannot_move=answer.cannot_move,
            )
        )

    async def _sync_answered(self, incoming: Incoming) -> None:
        if not incoming.payload:
            return  # as above
        answer = decode(incoming.payload, node_commands.NodeSyncAnswer)
        subjects.check_sender(incoming.subject, answer.node)
        self._put(m.SyncAnswered(answer))

    async def _reserve(self, incoming: Incoming) -> None:
        plan = decode(incoming.payload, preemption.Reserve).plan
        self._askers.setdefault(plan.plan_id, []).append(incoming)
        self._put(m.ReserveAsked(plan))

    async def _abandon(self, incoming: Incoming) -> None:
        order = decode(incoming.payload, preemption.Abandon)
        self._askers.setdefault(order.plan_id, []).append(incoming)
        self._put(m.AbandonAsked(order.plan_id, order.reason))

    def _capacity_wanted(self, event: CapacityWanted) -> None:
        self.ctx.emit(event, node=self.ctx.instance)

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._put(m.Tick(time.time()))

    # --- out --------------------------------------------------------------------------------------------------

    async def _carry_out(self, said: list[m.Command]) -> None:  # noqa: PLR0912 one branch a command
        for command in said:
            match command:
                case m.Publish():
                    if isinstance(command.event, PolicyRead):
                        self._policy_read(command.event)
                    if isinstance(command.event, TermTaken):
                        self.ctx.log.info("pods_are_placed", **msgspec.structs.asdict(command.event))
                    self._traces.record(command)
                    self.ctx.emit(
                        command.event,
                        namespace=command.namespace,
                        node=command.node,
                        about=command.uid,
                        traceparent=self.ctx.telemetry.traceparent(command.uid) if command.uid else "",
                    )
                case m.Append():
                    self._spawn(self._append(command))
                case m.SendBinds():
                    self._spawn(self._send_binds(command))
                case m.SendPatches():
                    self._spawn(self._send_patches(command))
                case m.SendGrant():
                    await self._order(command.node, "grant", command.grant, reply=self._ack("grant", command.node))
                case m.SendRelease():
                    await self._order(command.node, "release", command.release)
                case m.SendSync():
                    node = command.sync.node
                    await self._order(node, "sync", command.sync, reply=self._ack("sync", node))
                case m.SendHold():
                    self._spawn(self._send_hold(command))
                case m.SendReleasesSeen():
                    await self._order(command.node, "ack", node_commands.ReleasesSeen(grant_ids=command.grant_ids))
                case m.ForgetNode():
                    self._spawn(self._forget(command.node))
                case m.AnswerPlan():
                    for asker in self._askers.pop(command.answer.plan_id, ()):
                        with contextlib.suppress(NotTaken):  # the plan is proposed again
                            await self.bus.respond(asker, encode(command.answer))
                case m.TakeSnapshot():
                    self.feed.want_snapshot()
                case m.Again():
                    self._put(m.Tick(time.time()))
                    await asyncio.sleep(0)  # the bus is served first
                case m.Later():
                    asyncio.get_running_loop().call_later(command.seconds, self._put, m.Wake())
                case m.CheckTerm():
                    self._spawn(self._node_ahead(command.reason))
                case m.BeginLogAnew():
                    self.ctx.log.error("log_incomplete", why=command.reason, first_sequence=command.first_sequence)
                    await self.log_client.begin_anew(command.first_sequence)
                    raise LogDeleted(command.reason)

    async def _order(self, node: str, name: str, order: Message, *, reply: str = "") -> None:
        """Sends an order to a node's agent. Each is repeated until it is answered, so one that the bus does not take
        now is no reason to end the session."""
        try:
            await self.bus.publish(subjects.node_command(node, name), encode(order), reply=reply)
        except NotTaken as error:
            if not self._orders_unsent:
                self.ctx.log.warning("orders_not_sent", first=name, node=node, error=str(error))
            self._orders_unsent += 1
            return
        if self._orders_unsent:
            self.ctx.log.info("orders_sent_again", not_sent=self._orders_unsent)
            self._orders_unsent = 0

    def _ack(self, of: str, node: str) -> str:
        return subjects.ack(self.ctx.instance, of, node)

    def reconnected(self) -> None:
        """The servers may have lost the log. A takeover would find that by its first record, after it has touched the
        pods."""
        self._spawn(self._check_log())

    async def _check_log(self) -> None:
        """Servers that have lost all streams may need seconds until they can be made again."""
        while not await self._check_term("the connection was replaced"):
            if self.core.phase == "leading":
                return  # where the log is lost, its next record is refused
            await asyncio.sleep(TERM_AGAIN_S)

    async def _node_ahead(self, reason: str) -> None:
        if await self._check_term(reason):
            self.ctx.log.error("node_ahead_of_the_log", why=reason)

    async def _check_term(self, reason: str) -> bool:
        """Whether the newest term in the log is this session's. Raises Refused if it is another's, or there is none. A
        log that does not answer proves nothing: False."""
        try:
            newest = await self.bus.newest(subjects.LOG_TERM)
        except BusError as error:
            self.ctx.log.warning("term_not_checked", why=reason, error=str(error))
            return False
        if newest is None or decode(newest.payload, TermRecord).session != self.log_client.session:
            raise Refused(f"the newest term in the log, {newest and newest.sequence}, is not this session's ({reason})")
        return True

    def _name_excluded(self) -> None:
        """Excluded pods do not make placement unready: it serves all others."""
        excluded = self.core.recovery.excluded
        if excluded == self._excluded:
            return
        self._excluded = excluded
        if not excluded:
            self.ctx.health.clear("excluded")
            return
        names = ", ".join(self.core.book.pods[uid].key for uid in list(excluded)[:EXCLUDED_NAMED])
        self.ctx.log.error("pods_excluded", count=len(excluded), pods=names)
        self.ctx.health.set(
            "excluded", ok=True, detail=f"{len(excluded)} pods cannot be updated and are not placed: {names}"
        )

    def _policy_read(self, event: PolicyRead) -> None:
        """An invalid policy does not make placement unready: the last valid one is in force."""
        log = self.ctx.log.info if event.accepted else self.ctx.log.error
        log("policy_read", accepted=event.accepted, queues=event.queues, problem=event.problem)
        self.ctx.health.set(
            "policy",
            ok=True,
            detail=f"{event.queues} queues"
            + (f"; what was written since is not in force: {event.problem}" if event.problem else ""),
        )

    async def _append(self, command: m.Append) -> None:
        sequence = await self.log_client.append(command.record)
        if isinstance(command.record, DecisionBatch):
            self._decisions += len(command.record.decisions)
        self._put(m.Appended(sequence))

    async def _send_binds(self, command: m.SendBinds) -> None:
        batch = commands.BindBatch(term=self.core.term, sequence=command.sequence, binds=command.binds)
        try:
            answers = decode(
                await self.bus.request(subjects.CMD_BIND, encode(batch), timeout_s=ANSWER_S), commands.Answers
            ).answers
        except (Unknown, BusError) as error:
            self.ctx.log.warning("binds_unanswered", binds=len(command.binds), error=str(error))
            answers = tuple(
                commands.Answer(uid=b.uid, outcome="unknown", resource_version=b.resource_version)
                for b in command.binds
            )
        if answers:
            self._put(m.BindsAnswered(answers))

    async def _forget(self, node: str) -> None:
        try:
            await self.bus.kv(subjects.KV_NODES).delete(subjects.token(node))
        except BusError as error:
            self.ctx.log.warning("node_not_forgotten", node=node, error=str(error), effect="tried again in a minute")
        else:
            self.ctx.log.info("node_forgotten", node=node)

    async def _send_hold(self, command: m.SendHold) -> None:
        asked = command.hold
        try:
            reply = await self.bus.request(
                subjects.node_command(asked.node, "hold"), encode(asked), timeout_s=HOLD_ANSWER_S
            )
            answer = decode(reply, node_commands.NodeHoldAnswer)
        except (Unknown, BusError) as error:
            answer = node_commands.NodeHoldAnswer(node=asked.node, ok=False, reason=f"no answer: {error}")
        if not answer.ok:
            self.ctx.log.info("gang_not_held", node=asked.node, gang=command.gang, reason=answer.reason)
        if asked.hold_s:
            self._put(
                m.HoldAnswered(command.plan_id, command.gang, command.attempt, asked.node, answer.ok, answer.reason)
            )

    async def _send_patches(self, command: m.SendPatches) -> None:
        """In parts, one after another: orders and answers must each fit into a message, and a watcher answers within
        seconds."""
        for part in _parts(command.patches):
            await self._send_part(part)

    async def _send_part(self, patches: tuple[commands.Patch, ...]) -> None:
        touched = {patch.uid for patch in patches if isinstance(patch, commands.TouchPod)}
        try:
            batch = encode(commands.PatchBatch(patches=patches))
            reply = decode(await self.bus.request(subjects.CMD_PATCH, batch, timeout_s=ANSWER_S), commands.Answers)
        except (Unknown, BusError) as error:
            self.ctx.log.warning("patches_unanswered", patches=len(patches), error=str(error))
            if isinstance(error, NoResponder) and touched:
                self._put(m.TouchesNotSent(tuple(sorted(touched))))
            return
        for answer in reply.answers:
            if answer.outcome not in ("done", "gone"):
                self.ctx.log.info("patch_not_applied", uid=answer.uid, outcome=answer.outcome, message=answer.message)
        of_touches = tuple(answer for answer in reply.answers if answer.uid in touched)
        if of_touches:
            self._put(m.PatchesAnswered(of_touches))

    async def _renew_if_due(self) -> None:
        """R5. Runs in the loop, so that no append of the old term is under way while the new one is taken."""
        loop = asyncio.get_running_loop()
        due = loop.time() >= self._renew_at or self._decisions >= self.ctx.config.renew_term_decisions
        if not due or not self.core.may_renew:
            return
        self._renew_at, self._decisions = loop.time() + self.ctx.config.renew_term_s, 0
        term = await self.log_client.renew_term()
        await self._carry_out(self.core.handle(m.TermRenewed(term), time.monotonic()))

    # --- tasks ------------------------------------------------------------------------------------------------

    def _put(self, event: m.Input) -> None:
        self._inbox.put_nowait(event)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        """A task that fails ends the session: running on without it would be worse."""
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not self._failure.done():
            self._failure.set_result(repr(task.exception()))
            self._put(m.Tick(time.time()))


def _parts(patches: Sequence[commands.Patch]) -> Iterator[tuple[commands.Patch, ...]]:
    """Each fits into a message. A patch that does not by itself takes no other with it."""
    part: list[commands.Patch] = []
    room = RECORD_MOST_BYTES
    for patch in patches:
        size = len(encode(patch))
        if part and (size > room or len(part) == PART_MOST):
            yield tuple(part)
            part, room = [], RECORD_MOST_BYTES
        part.append(patch)
        room -= size
    if part:
        yield tuple(part)
