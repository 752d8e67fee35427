"""The CPUs that pods with GPUs take beside them, by NUMA node."""

from __future__ import annotations

from copy import copy

from shared.book.demand import Demand
from shared.model.gpu import Inventory
from shared.model.grant import Grant


class CpusBeside:
    """Of one node. Kept as grants come and go, because each decision asks for it; the Ledger says what is there.

    A pod with GPUs on several NUMA nodes takes the same part of its request on each.
    """

    def __init__(self, inventory: Inventory | None = None) -> None:
        gpus = () if inventory is None else inventory.gpus
        self._numa = {gpu.uuid: gpu.numa_node for gpu in gpus} if len({gpu.numa_node for gpu in gpus}) > 1 else {}
        """The NUMA node of each GPU; empty where there are not several: nothing is counted then."""
        self._parts: dict[str, tuple[int, frozenset[int]]] = {}
        """By grant: how many thousandths of CPUs it takes on each of which NUMA nodes."""
        self.taken_milli: dict[int, int] = {}

    def put(self, grant: Grant, demand: Demand) -> None:
        """The pod of this grant is on the node. A repetition takes the place of what was there."""
        if not self._numa:
            return
        self.drop(grant.grant_id)
        shares = (share for container in grant.containers.values() for share in container.gpus)
        beside = frozenset(self._numa[share.uuid] for share in shares if share.uuid in self._numa)
        if beside and demand.cpu_milli:
            self._parts[grant.grant_id] = (demand.cpu_milli // len(beside), beside)
            self._add(demand.cpu_milli // len(beside), beside)

    def drop(self, grant_id: str) -> None:
        """The pod or its grant is gone; nothing happens where it was not counted."""
        part = self._parts.pop(grant_id, None)
        if part is not None:
            self._add(-part[0], part[1])

    def copy(self) -> CpusBeside:
        if not self._numa:
            return self  # it never counts anything
        twin = copy(self)
        twin._parts, twin.taken_milli = dict(self._parts), dict(self.taken_milli)
        return twin

    def _add(self, amount: int, places: frozenset[int]) -> None:
        for place in places:
            self.taken_milli[place] = self.taken_milli.get(place, 0) + amount
