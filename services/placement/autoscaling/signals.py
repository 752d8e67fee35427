"""All that placement writes for autoscalers, as the settings say."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from services.placement.autoscaling.advertising import Advertising
from services.placement.autoscaling.no_room import NoRoom
from services.placement.autoscaling.nominations import Nominations
from services.placement.config import Config
from services.placement.engine.engine import Engine
from services.placement.engine.shape import INFEASIBLE
from services.placement.preemption.reservations import Reservations
from services.placement.scheduling.fair.group_requests import GroupRequests
from services.placement.scheduling.queue import Queue
from shared.book.book import Book
from shared.book.gangs import Gangs
from shared.book.states import NodeState, PodState
from shared.contracts.commands import Patch
from shared.model.units import whole


class Signals:
    def __init__(
        self,
        book: Book,
        config: Config,
        *,
        queue: Queue,
        requests: GroupRequests,
        gangs: Gangs,
        engine: Engine,
        reservations: Reservations,
        held: Container[str],
    ) -> None:
        """`held`: pods with a Binding under way, by uid."""
        self._book, self._config, self._queue, self._requests, self._gangs = book, config, queue, requests, gangs
        self._reservations, self._engine = reservations, engine
        self._advertising = Advertising(book, whole(config.quota_gpu_memory))
        # Without an autoscaler too: taints that were written before the setting was changed are taken away.
        self._no_room = NoRoom(book, self._without_capacity if config.autoscaler else tuple, self._fits_in_part)
        self._nominations = Nominations(book, self._planned, lambda: self._queue, held)

    def inventory_changed(self, node: str) -> None:
        self._advertising.note(node)

    def due(self, now: float) -> tuple[Patch, ...]:
        patches: list[Patch] = []
        if self._config.advertise_capacity:
            patches += self._advertising.due(now)
        patches += self._no_room.due(now)
        if self._config.autoscaler:
            patches += self._nominations.due(now)
        return tuple(patches)

    def _planned(self) -> Mapping[str, str]:
        return {b.uid: b.node for reserved in self._reservations.values() for b in reserved.plan.beneficiaries}

    def _fits_in_part(self, state: PodState, node: NodeState) -> bool:
        """Whether the node has room for this pod of a gang that is placed together or not at all."""
        gang = self._gangs.of(state.uid)
        if gang is None or gang.need < 2:
            return False
        return bool(self._engine.row(state).refresh()[node.row] != INFEASIBLE)

    def _without_capacity(self) -> Iterator[PodState]:
        """Pods that were tried and wait for capacity alone; of those of one shape the first. Nodes help neither pods
        over their queue's quota nor a gang that still lacks pods, and for some a plan makes room."""
        planned = self._planned()
        for group in self._queue.groups.values():
            if not group.unschedulable or not group.members:
                continue
            head = group.head[3]
            gang = self._gangs.of(head)
            if gang is not None and (not gang.gathered or gang.problem):
                continue
            if head in planned or self._gangs.unknown_source(self._book.pods[head]):
                continue
            if self._requests.quota_exceeded(head, self._queue.group_with) is not None:
                continue
            members = (head,) if gang is None else tuple(member[3] for member in group.members)
            yield from (self._book.pods[uid] for uid in members)
