"""How fast jobs really run, in this simulation: by tables and laws other than those that placement predicts with.

- MPS: the measured pairs of `apps.py`; of several neighbours the products; and never more than the part of the SMs that
  an active thread percentage leaves of what is needed. Two per cent of the jobs have a fatal fault,
  which costs a job what it did since its last checkpoint, and under MPS all that share its GPU (NVIDIA, MPS: a fatal
  fault is reported to all clients).
- Turns: GPU time is divided by max-min fairness among the busy parts, a process in its busy part waits as in processor
  sharing, and each of several gets 0.92 of what is divided (two that saturate the GPU get 0.46 each).
- Reserved shares: never more than the share, and 3 per cent less where windows alternate (docs/measurements/
  enforce.json, workloads.json: a half of the GPU takes 2.0 to 2.2 times as long).
- MIG: a power of what the instance has of what the program needs; the exponents by class. GROMACS on a seventh of an
  A100 makes about a quarter of what it makes alone.
- Remote: each call waits for a round trip with jitter, each byte for the link, and 4 per cent go to forwarding.

A faster GPU shortens the busy part alone. Each relation has an error of its own that is drawn once (5 per cent).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from bench.adaptive.apps import App, Class, beside

SPEED = {"V100": 1.0, "A100": 1.7, "H100": 2.8, "T4": 0.45}
"""Of the busy part, V100 1: published training throughputs of the models (Lambda, GPU benchmarks; MLPerf), rounded."""
LAUNCH_S = 0.14e-6
CHECKPOINT_S = 600.0
FAULTS = 0.02
NOISE = 0.05
_SWITCH = 0.92
_WINDOWS = 0.97
_FORWARDING = 0.96
_EXPONENT: dict[Class, float] = {"light": 0.7, "compute": 1.0, "memory": 0.9, "host": 0.5}


class Link(msgspec.Struct, frozen=True):
    """Between two nodes."""

    rtt_us: float
    mib_s: float


class Running(msgspec.Struct):
    """A job on a GPU."""

    job: int
    app: App
    strategy: str
    model: str
    share: float = 1.0
    """Of GPU time, if it is reserved; of SMs under MIG, and by MPS' active thread percentage."""
    bandwidth: float = 1.0
    link: Link | None = None


class Truth:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._errors: dict[tuple[str, ...], float] = {}

    def rate(self, me: Running, others: Sequence[Running]) -> float:
        """Seconds of its run time on a V100 of its own that a job gets done in a second."""
        busy = self.busy(me)
        alone = 1 / (me.app.busy / SPEED[me.model] + 1 - me.app.busy)
        if me.strategy == "mps":
            part = 1.0
            for other in others:
                lost = (1 - beside(me.app, other.app)) * self.busy(other) / max(other.app.busy, 0.01)
                part *= max(0.05, 1 - lost * self._error(me.app.name, other.app.name))
            part = min(part, me.share / self._need(me))
        elif me.strategy == "mig":
            part = min(1.0, (me.share / max(0.05, self._need(me))) ** _EXPONENT[me.app.kind])
            if me.app.kind == "memory":
                part = min(part, (me.bandwidth / max(0.05, self._need(me))) ** 0.9)
            part *= self._error(me.app.name, "mig")
        elif me.strategy == "exclusive":
            part = 1.0
        elif me.share < 1:
            part = min(1.0, me.share / busy) * (_WINDOWS if others else 1.0)
        else:
            part = self._turns(me, others, busy)
        if me.strategy not in ("exclusive", "mig"):
            part *= 1 - LAUNCH_S * me.app.calls_per_s
        if me.link is not None:
            part *= self._forwarded(me, me.link)
        return alone * min(1.0, part)

    def busy(self, one: Running) -> float:
        """The part of the time in which its kernels run on this model."""
        on_gpu = one.app.busy / SPEED[one.model]
        return on_gpu / (on_gpu + 1 - one.app.busy)

    def _need(self, one: Running) -> float:
        return one.app.load * self.busy(one) / one.app.busy

    def _turns(self, me: Running, others: Sequence[Running], busy: float) -> float:
        if not others:
            return 1.0
        reserved = sum(min(o.share, self.busy(o)) for o in others if o.share < 1)
        rest = [self.busy(o) for o in others if o.share >= 1]
        capacity = (1 - reserved) * _SWITCH
        fair = _max_min(capacity, [busy, *rest])[0]
        load = min(0.95, sum(rest) / max(0.05, capacity))
        waits = 1 / (1 - busy + busy / (1 - load)) if load < 1 else 0.0
        part = max(min(1.0, fair / busy) * 0.9, min(waits, fair / busy)) if sum(rest) + busy > capacity else waits
        return part * self._error(me.app.name, "turns")

    def _forwarded(self, me: Running, link: Link) -> float:
        jitter = self._error(me.app.name, "jitter", str(link.rtt_us)) * 1.15
        stretch = 1 + me.app.calls_per_s * link.rtt_us * 1e-6 * jitter + me.app.copy_mib_per_s / link.mib_s
        return _FORWARDING / stretch

    def _error(self, *of: str) -> float:
        if of not in self._errors:
            self._errors[of] = random.Random(f"{self._seed} {of}").lognormvariate(0.0, NOISE)
        return self._errors[of]


def _max_min(capacity: float, wants: Sequence[float]) -> list[float]:
    """What each gets if none gets more than it wants, and nobody less than an equal part of what is left."""
    got = [0.0] * len(wants)
    left = capacity
    open_ = sorted(range(len(wants)), key=lambda place: wants[place])
    while open_:
        part = left / len(open_)
        place = open_.pop(0)
        got[place] = min(wants[place], part)
        left -= got[place]
    return got
