"""Placement on the bus: the leader lease, and the wiring of leader sessions. The core decides."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Coroutine
from typing import Any

from services.placement.config import Config
from services.placement.engine.precompile import exercise
from services.placement.leader.log_client import LogClient
from services.placement.leader.session import LeaderSession, LogDeleted
from shared.bus.port import BusError, Refused
from shared.contracts.base import ContractError
from shared.model.units import WHOLE_GPU_MILLI
from shared.service import Context, Leadership, Service

_AGAIN_S = 1.0
UNREADY_MOST_S = 180.0
"""For so long no replica is ready because none places pods: longer than the longest takeover, and shorter than a
Deployment waits for its progress (600 s)."""


class Placement(Service):
    """Decides which node and GPUs each pod gets. One instance leads, the others are on standby."""

    name = "placement"
    config_type = Config
    knows_cluster = True
    provisions = True

    async def start(self, ctx: Context) -> None:
        self.ctx = ctx
        await asyncio.to_thread(exercise)
        self._leading: asyncio.Task[None] | None = None
        self._leadership = Leadership(
            ctx.bus,
            "placement",
            ctx.instance,
            on_elected=self._elected,
            on_lost=self._lost,
            serves=self._serves,
            on_served=self._served,
        )
        ctx.health.set("role", ok=True, detail="standby")
        self._unserved: asyncio.TimerHandle | None = None
        self._served(False)
        ctx.metrics.observe_by(
            "kerf_placement_leader", "1 on the instance that leads.", lambda: float(self._leading is not None)
        )
        ctx.metrics.observe_by(
            "kerf_placement_serving",
            "1 on the instance that leads, has recovered and places pods.",
            lambda: float(self._serves()),
        )
        self._log_failures = ctx.metrics.counter(
            "kerf_placement_log_failures_total",
            "Requests to the log that failed. AppendRecord: a record is not written; Refused: a newer leader leads.",
            ("request", "cause"),
        )
        self._session_now: LeaderSession | None = None
        self._sessions = 0
        self._export(ctx)
        ctx.bus.on_reconnect(self._reconnected)
        ctx.spawn(self._leadership.run(), name="leadership")

    def _serves(self) -> bool:
        return self._session_now is not None and self._session_now.core.phase == "leading"

    def _export(self, ctx: Context) -> None:
        def of(read: Callable[[LeaderSession], float]) -> Callable[[], float]:
            return lambda: 0.0 if self._session_now is None else float(read(self._session_now))

        m = ctx.metrics.observe_by
        m(
            "kerf_placement_feed_number",
            "The newest batch of facts taken in; the watcher's kerf_watcher_feed_number less this is the lag.",
            of(lambda r: r.feed.number),
        )
        m(
            "kerf_placement_feed_gaps_total",
            "Batches missed, each answered by a new snapshot.",
            of(lambda r: r.feed.gaps),
            kind="counter",
        )
        m("kerf_placement_snapshots_total", "Snapshots taken.", of(lambda r: r.feed.snapshots), kind="counter")
        m(
            "kerf_policy_invalid",
            "1 while the queues in kerf-policy cannot be read; those read before stay in force.",
            of(lambda r: bool(r.core.fair.problem)),
        )
        m(
            "kerf_placement_pods_excluded",
            "Pods that cannot be updated, and are not placed until an update of them succeeds.",
            of(lambda r: len(r.core.recovery.excluded)),
        )
        m(
            "kerf_placement_slowdown_error_ratio",
            "How far expected slowdowns were off, in multiples of the time alone, by the way of sharing.",
            self._slowdown_errors,
            labels=("way",),
        )
        m("kerf_placement_owners_known", "Owners of pods of which use of GPUs is known.", of(_owners_known))
        m(
            "kerf_placement_reserved_gpus",
            "GPUs that are reserved for the first pods and gangs of the queue, in use or not.",
            of(lambda r: r.core.backfill.gpu_milli / WHOLE_GPU_MILLI),
        )
        m(
            "kerf_placement_reserved_idle_gpu_seconds_total",
            "GPU time for which reserved GPUs were free.",
            of(lambda r: r.core.backfill.idle_gpu_seconds),
            kind="counter",
        )
        m("kerf_placement_inbox", "Inputs that wait for the core.", of(lambda r: r.waiting))

    def _slowdown_errors(self) -> dict[tuple[str, ...], float]:
        session = self._session_now
        errors = {} if session is None else session.core.profiles.learner.errors
        return {(way,): error.absolute for way, error in errors.items()}

    def _served(self, served: bool) -> None:
        """A replica is ready when pods are placed, by whichever replica: an upgrade goes on with the next one only
        then, so no leader is ended during its takeover. If no pods are placed for long, something else has to be
        mended, and a rollback or the drain of a node that would mend it must not be delayed by readiness."""
        if self._unserved is not None:
            self._unserved.cancel()
        detail = "a leader places pods" if served else "no leader places pods yet"
        self.ctx.health.set("service", ok=served, detail=detail)
        if not served:
            late = f"no leader has placed pods for {UNREADY_MOST_S:.0f} s"
            self._unserved = asyncio.get_running_loop().call_later(
                UNREADY_MOST_S, lambda: self.ctx.health.set("service", ok=True, detail=late)
            )

    async def _reconnected(self) -> None:
        """After streams that the servers have lost were made again (`provisions`)."""
        if self._session_now is not None:
            self._session_now.reconnected()

    async def _elected(self) -> None:
        self._leading = self.ctx.spawn(self._session(), name="session")

    async def _lost(self) -> None:
        await self._end_session()
        gc.collect()  # the session's book is many objects in cycles; by itself this comes late (shared/service/process)

    async def _session(self) -> None:
        """Runs leader sessions while this process has the lease. A session starts by taking a term and ends when an
        append is refused: most often by the term of a successor, before a process that was frozen has tried to renew
        the lease. A term taken then would end the successor's session."""
        while True:
            session, again_s = None, _AGAIN_S
            try:
                self._sessions += 1
                log_client = LogClient(
                    self.ctx.bus,
                    self.ctx.instance,
                    f"{self.ctx.instance}/{self._sessions}",
                    lambda request, cause: self._log_failures.add(1, request, cause),
                )
                await self.ctx.provision()
                if other := await self._leadership.taken_by():
                    raise Refused(f"{other} leads")
                await log_client.take_term()
                session = LeaderSession(self.ctx, log_client)
                self._session_now = session
                self.ctx.health.set("role", ok=True, detail=f"leader of term {log_client.term}")
                await session.run()
            except LogDeleted:
                again_s = 0.0
            except (Refused, BusError, ContractError) as error:
                self.ctx.log.warning("session_ended", error=str(error))
            finally:
                self._session_now = None
                self.ctx.health.set("role", ok=True, detail="standby")
                if session is not None:
                    await _to_the_end(session.close())
                    del session
            gc.collect()  # before the next one builds its own
            await asyncio.sleep(again_s)

    async def _end_session(self) -> None:
        task, self._leading = self._leading, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def drain(self) -> None:
        """What is in the log outlives this session: the successor sends it again."""
        await self._end_session()
        await self._leadership.release()


def _owners_known(session: LeaderSession) -> float:
    return float(len(session.core.profiles.learner))


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Even if the waiting task is cancelled: a session that is closed half-way would continue to answer queries."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


SERVICE = Placement
