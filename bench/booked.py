"""Double bookings, counted from the API server's objects alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shared.model.grant import decode_grant, sum_shares
from shared.model.names import ANNOTATION_GRANT


class Booked:
    """What bound pods were granted, added up page by page."""

    def __init__(self) -> None:
        self.bound = 0
        self._taken: dict[Any, list[int]] = {}

    def add(self, pods: Iterable[Mapping[str, Any]]) -> None:
        for pod in pods:
            if not pod["spec"].get("nodeName"):
                continue
            self.bound += 1
            note = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_GRANT)
            for gpu, (mib, milli) in sum_shares([decode_grant(note)]).items() if note else ():
                taken = self._taken.setdefault(gpu, [0, 0])
                taken[0] += mib
                taken[1] += milli

    def doubled(self, memory_mib: int) -> int:
        """GPUs of which more was granted than they have."""
        return sum(1 for mib, milli in self._taken.values() if mib > memory_mib or milli > 1000)
