"""How a running slice follows its use: the annotation `kerf.dev/autoscale`, and what it makes of what was observed.

`memory=4Gi..20Gi,compute=10..60` bounds what the only container with GPUs of a pod shall have, as its total. Pure: the
same samples lead to the same amounts.

- *Up*, at once: an allocation failed at the limit, or 90 % of the memory is used; or the slice used 90 % of its GPU
  time for a minute. A quarter more.
- *To the bounds*, at once, but to no less than is used.
- *By way of the request*: what goes up past the amount that the pod requests stops there once, and what stays within it
  is not asked for together with what exceeds it. Placement may refuse whatever exceeds the request.
- *Down*, when for five minutes (after a failed allocation for half an hour) no sample was above 60 %: to a quarter more
  than the peak of that time.

Whatever follows from a use is between the two thresholds for the same use, so a constant use changes an amount once.
"""

from __future__ import annotations

from collections import deque

import msgspec

from shared.model import names
from shared.model.request_amounts import MAX_MEMORY_BYTES
from shared.model.resize import MAX_TEXT, quoted
from shared.model.units import MIB, QuantityError, quantity

KEY = names.ANNOTATION_AUTOSCALE
SETTLE_S, REFUSED_SETTLE_S, BUSY_S = 300.0, 1800.0, 60.0
HIGH_PERCENT, LOW_PERCENT, BESIDE_PERCENT = 90, 60, 125
MEMORY_STEP_MIB, COMPUTE_STEP_MILLI = 256, 10
MIN_SAMPLES = 3


class AutoscaleError(ValueError):
    """The annotation makes no sense. The text says what to write."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Inclusive, in MiB or in thousandths of a GPU."""

    low: int
    high: int

    def clamp(self, amount: int) -> int:
        return max(self.low, min(self.high, amount))

    def within(self, most: int) -> Bounds:
        """As far as so much can be had; 0: any amount."""
        return Bounds(low=min(self.low, most), high=min(self.high, most)) if most else self


class Autoscale(msgspec.Struct, frozen=True, kw_only=True):
    """What may change. None: that stays as it is."""

    memory: Bounds | None = None
    compute: Bounds | None = None


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of a container, over all of its GPUs."""

    at_s: float
    memory_mib: int
    granted_mib: int
    refused: int = 0
    """Allocations that failed at the limit since the container's start."""
    gpu_milli: int | None = None
    granted_milli: int = 0
    requested_mib: int = 0
    """What the pod requests; 0: nothing, or it is not known."""
    requested_milli: int = 0
    total_mib: int = 0
    """The memory of its GPUs; 0: it is not known."""


def read_autoscale(text: str) -> Autoscale:
    """Raises AutoscaleError."""
    found: dict[str, Bounds] = {}
    if len(text) > MAX_TEXT:
        raise AutoscaleError(f"annotation {KEY} has {len(text)} characters; write at most {MAX_TEXT}")
    for part in text.split(","):
        what, _, span = (word.strip() for word in part.partition("="))
        low, dots, high = span.partition("..")
        if what not in ("memory", "compute") or not dots or what in found:
            raise AutoscaleError(
                f"annotation {KEY} is {quoted(text)}; write bounds such as memory=4Gi..20Gi,compute=10..60"
            )
        try:
            if what == "memory":
                bounds = Bounds(low=int(quantity(low) // MIB), high=int(quantity(high) // MIB))
            else:
                bounds = Bounds(low=int(quantity(low) * 10), high=int(quantity(high) * 10))
        except QuantityError as error:
            raise AutoscaleError(f"annotation {KEY}: {quoted(f'{error}')}") from None
        if not 0 < bounds.low <= bounds.high <= MAX_MEMORY_BYTES // MIB:
            raise AutoscaleError(
                f"annotation {KEY}: {quoted(part)} is no span from a smaller to a larger amount above 0"
            )
        found[what] = bounds
    return Autoscale(**found)


class Amount:
    """One amount of one container: what it shall be, by what was used."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._seen: deque[tuple[float, int]] = deque()
        self._settled_at: float | None = None
        """Before this time nothing becomes less."""

    def wanted(self, at_s: float, used: int, granted: int, bounds: Bounds, *, lacks: bool, settle_s: float) -> int:
        """The amount that there shall be. `lacks`: it needs more now, however little it uses. `settle_s`: for how long
        the use must be low before it becomes less."""
        amount = self._followed(at_s, used, granted, bounds, lacks=lacks, settle_s=settle_s)
        return max(bounds.clamp(amount), min(granted, self._round(used * 100)))

    def _followed(self, at_s: float, used: int, granted: int, bounds: Bounds, *, lacks: bool, settle_s: float) -> int:
        self._seen.append((at_s, used))
        horizon = at_s - SETTLE_S
        while self._seen[0][0] < horizon:
            self._seen.popleft()
        if self._settled_at is None or used * 100 > granted * LOW_PERCENT or lacks:
            self._settled_at = max(self._settled_at or 0.0, at_s + settle_s)
        if lacks:
            more = max(granted * BESIDE_PERCENT, used * BESIDE_PERCENT)
            return max(granted, bounds.clamp(self._round(more))) if granted <= bounds.high else granted
        peak = max(amount for _, amount in self._seen)
        if at_s < self._settled_at or len(self._seen) < MIN_SAMPLES or peak * 100 > granted * LOW_PERCENT:
            return granted if granted >= bounds.low else bounds.low
        less = max(bounds.low, self._round(peak * BESIDE_PERCENT))
        return min(granted, less) if granted >= bounds.low else bounds.low

    def _round(self, percent: int) -> int:
        """Up to a whole step."""
        return -(-percent // (100 * self._step)) * self._step


class Follower:
    """Follows the use of one container."""

    def __init__(self) -> None:
        self._memory, self._compute = Amount(MEMORY_STEP_MIB), Amount(COMPUTE_STEP_MILLI)
        self._refused: int | None = None
        self._busy_since: float | None = None

    def wanted(self, use: Use, scale: Autoscale) -> tuple[int, int]:
        """(memory_mib, compute_milli) that the container shall have."""
        memory_mib, compute_milli = use.granted_mib, use.granted_milli
        failed = self._refused is not None and use.refused > self._refused
        self._refused = use.refused
        if scale.memory is not None:
            memory_mib = self._memory.wanted(
                use.at_s,
                use.memory_mib,
                use.granted_mib,
                scale.memory.within(use.total_mib),
                lacks=failed or use.memory_mib * 100 >= use.granted_mib * HIGH_PERCENT,
                settle_s=REFUSED_SETTLE_S if failed else SETTLE_S,
            )
        if scale.compute is not None and use.gpu_milli is not None and use.granted_milli:
            busy = use.gpu_milli * 100 >= use.granted_milli * HIGH_PERCENT
            self._busy_since = (self._busy_since if self._busy_since is not None else use.at_s) if busy else None
            lacks = self._busy_since is not None and use.at_s - self._busy_since >= BUSY_S
            compute_milli = self._compute.wanted(
                use.at_s, use.gpu_milli, use.granted_milli, scale.compute, lacks=lacks, settle_s=SETTLE_S
            )
            if compute_milli > use.granted_milli:
                self._busy_since = None
        memory_mib = _by_way_of(use.requested_mib, use.granted_mib, memory_mib)
        compute_milli = _by_way_of(use.requested_milli, use.granted_milli, compute_milli)
        return _within_first(use, memory_mib, compute_milli)


def _by_way_of(requested: int, granted: int, wanted: int) -> int:
    return requested if granted < requested < wanted else wanted


def _within_first(use: Use, memory_mib: int, compute_milli: int) -> tuple[int, int]:
    """Of two changes, the one within the request alone if the other exceeds it."""
    more_memory = memory_mib > max(use.granted_mib, use.requested_mib)
    more_compute = compute_milli > max(use.granted_milli, use.requested_milli)
    if more_memory and not more_compute and compute_milli != use.granted_milli:
        return use.granted_mib, compute_milli
    if more_compute and not more_memory and memory_mib != use.granted_mib:
        return memory_mib, use.granted_milli
    return memory_mib, compute_milli
