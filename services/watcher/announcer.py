"""Events and conditions for people: written after the binds, slowly, and dropped first when there is too much to do."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from shared.contracts.commands import AnnounceEvent, Outcome, ReportPending
from shared.kube.writes import Writes
from shared.model.objects import Pod

QUEUE_LIMIT = 2000
REPORT_INTERVAL_S = 5.0
FLUSH_S = 10.0
"""So long at most Events are written at the end, half of the drain time-out. Each costs the server what a Binding does;
behind a full queue a rolling upgrade would wait for the whole time-out, and the rest would be lost all the same."""
PAUSE_S = 0.01
THROTTLED_S, THROTTLED_MOST_S = 1.0, 20.0
"""The first and the longest pause after an Event that the server has no time for; each is twice as long."""
QUIET_S = 0.5
"""Events wait until no Binding has come for so long: an Event costs the API server as much as a Binding. Conditions do
not wait, because they say why a pod is pending."""


class OfPod(Protocol):
    """An order about a pod."""

    @property
    def uid(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...


class Announcer:
    """`offer` and `report` never wait. `busy` says whether Bindings are under way; while they are, nothing is written.
    Counts: `written`, `failed`, and `shed` for what was dropped because the queue was full."""

    def __init__(
        self, writes: Writes, find_pod: Callable[[str, str], Pod | None], busy: Callable[[], bool], log: Any
    ) -> None:
        self._writes = writes
        self._find_pod = find_pod
        self._busy = busy
        self._log = log
        self._events: deque[AnnounceEvent] = deque()
        self._warnings: deque[AnnounceEvent] = deque()
        """Written while pods are bound, too, and never dropped for what is normal."""
        self._reports: dict[str, ReportPending] = {}
        self._reported_at: dict[str, float] = {}
        self._early: set[str] = set()
        """Uids of pods with a report that were not known when it was first to be written."""
        self._wake = asyncio.Event()
        self._offered_at = float("-inf")
        self._throttled_s = 0.0
        """How long nothing was announced after the server had refused the last one."""
        self._prefix = secrets.token_hex(4)
        self._names = 0
        self.written = 0
        self.failed = 0
        self.shed = 0

    def tell(self, order: OfPod, reason: str, action: str, note: str, *, warns: bool = False) -> None:
        """Offers an Event on the pod of an order. `warns`: whether its type is Warning or Normal."""
        self.offer(
            AnnounceEvent(
                uid=order.uid,
                namespace=order.namespace,
                name=order.name,
                type="Warning" if warns else "Normal",
                reason=reason,
                action=action,
                note=note,
            )
        )

    def offer(self, event: AnnounceEvent) -> None:
        if event.reason == "Scheduled":
            self._offered_at = time.monotonic()
        queue = self._warnings if event.type == "Warning" else self._events
        if len(queue) >= QUEUE_LIMIT:
            self.shed += 1
            return
        queue.append(event)
        self._wake.set()

    def report(self, order: ReportPending) -> None:
        """The newest report of a pod is kept; an older one that was not written yet is replaced."""
        if len(self._reports) >= QUEUE_LIMIT and order.uid not in self._reports:
            self.shed += 1
            return
        self._reports[order.uid] = order
        self._wake.set()

    @property
    def waiting(self) -> int:
        return len(self._events) + len(self._warnings) + len(self._reports)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self.waiting:  # noqa: ASYNC110 - the pause is the rhythm, not a wait for a condition
                # A pause between writes leaves the server to the binds; reports that come too soon wait it out here
                # too.
                await asyncio.sleep(PAUSE_S if not self._busy() and await self._step() else 10 * PAUSE_S)

    async def flush(self) -> None:
        """Writes the Events that wait, without regard to rhythm, for FLUSH_S; for the end. A server that does not
        answer ends it."""
        failures, until = 0, time.monotonic() + FLUSH_S
        while (self._warnings or self._events) and failures < 3 and time.monotonic() < until:
            answered = await self._announce((self._warnings or self._events).popleft()) not in ("unknown", "throttled")
            failures = 0 if answered else failures + 1
        self.shed += len(self._events) + len(self._warnings)
        self._events.clear()
        self._warnings.clear()

    async def _step(self) -> bool:
        """Writes one thing; False where nothing may be written now."""
        now = time.monotonic()
        uid = next(
            (u for u in self._reports if now - self._reported_at.get(u, float("-inf")) >= REPORT_INTERVAL_S), None
        )
        if uid is not None:
            if len(self._reported_at) > 10 * QUEUE_LIMIT:
                self._reported_at = {u: t for u, t in self._reported_at.items() if now - t < REPORT_INTERVAL_S}
            self._reported_at[uid] = now
            await self._report(self._reports.pop(uid))
            return True
        queue = self._warnings or (self._events if now - self._offered_at >= QUIET_S else ())
        if queue:
            event = queue.popleft()
            if await self._announce(event) == "throttled":  # it was not written, and the next one would not be
                queue.appendleft(event)
                self._throttled_s = min(THROTTLED_MOST_S, 2 * self._throttled_s or THROTTLED_S)
                await asyncio.sleep(self._throttled_s)
                return False
            self._throttled_s = 0.0
            return True
        return False

    async def _report(self, order: ReportPending) -> None:
        found = self._find_pod(order.namespace, order.name)
        pod = found if found is not None and found.metadata.uid == order.uid else None
        if pod is None and order.uid not in self._early:
            # Placement may follow a watcher that is further on, and says a reason once. A pod that is not known at the
            # next try is gone.
            self._early.add(order.uid)
            self._reports.setdefault(order.uid, order)
            return
        self._early.discard(order.uid)
        if pod is None or pod.spec.node_name or stands(pod, order):
            return
        result = await self._writes.pods.report_unscheduled(
            order.namespace,
            order.name,
            order.uid,
            reason=order.reason,
            message=order.message,
            now_s=time.time(),
            resource_version=pod.metadata.resource_version,
        )
        self._count(result.outcome, result.message, order.name)
        if result.outcome in ("conflict", "throttled", "unknown"):
            # Unless the pod was bound, or a newer report has come, the sentence still holds: write it again later.
            self._reports.setdefault(order.uid, order)
        if result.outcome == "done":
            self.tell(order, "FailedScheduling", "Scheduling", order.message, warns=True)

    async def _announce(self, event: AnnounceEvent) -> Outcome:
        self._names += 1
        name = f"{event.name[:220]}.{self._prefix}{self._names:x}"
        result = await self._writes.events.announce(event, event_name=name, now_s=time.time())
        self._count(result.outcome, result.message, event.name)
        return result.outcome

    def _count(self, outcome: str, message: str, pod: str) -> None:
        if outcome == "done":
            self.written += 1
            return
        self.failed += 1
        if outcome not in ("gone", "conflict"):
            self._log.warning("announcement_failed", pod=pod, outcome=outcome, message=message)


def stands(pod: Pod, order: ReportPending) -> bool:
    """Whether the pod's condition has this sentence already."""
    return any(
        c.type == "PodScheduled" and c.status == "False" and c.reason == order.reason and c.message == order.message
        for c in pod.status.conditions
    )
