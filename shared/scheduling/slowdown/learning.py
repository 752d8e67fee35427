"""Learns what the containers of an owner do on a GPU, from samples of earlier ones, and how far predictions are off.

An owner is a namespace, the controller of the pods (a ReplicaSet without its template's hash, a Job without the time
that a CronJob appends) and a container. Figures are exponentially weighted: the first samples count fully, later ones
with 1 / MEMORY. A container that waits at the gate would be busy for more of its time if it did not: what it has used
is divided by the part of the time in which it did not wait. Where slices run at the same time (MPS) nobody sees that,
so samples of a GPU that is shared so count only while there is nothing better.

The slowdown that is observed is the larger of what the gate says and of how much slower launches come than while the
container had the GPU for itself. What is observed of what was predicted is the owner's sensitivity.

Both count only while the container asks for about as much of the GPU as it does on the mean: a lull has fewer launches
and no waits, and says nothing about neighbours. GPU time of a request is not learned: agents know that of a launch.

Nothing is stored: a new leader learns anew, from the samples of about a minute. At most MAX_OWNERS are known, of one
namespace at most MAX_OF_NAMESPACE. Owners without a running pod make room first; where all have one, the new owner is
not learned. Pure.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Any

import msgspec

from shared.book.states import PodState
from shared.contracts.samples import SliceUse
from shared.model.units import WHOLE_GPU_MILLI
from shared.model.use import UseProfile
from shared.scheduling.slowdown.local import Way

Owner = tuple[str, str, str, str]
"""Namespace, kind and name of the controller, container."""
MAX_OWNERS = 4096
MAX_OF_NAMESPACE = 256
_LOOKED_AT = 64
"""So many of the owners seen longest ago are looked at for one that makes room."""
MIN_SAMPLES = 12
"""A profile is used from so many samples on: a minute at the agents' default of five seconds."""
MEMORY = 64
_STEP_MILLI = 50
"""Profiles are rounded to that, and change by that or a tenth, whichever is more: pods of one owner share cached
scores, and no others are tried again, until something has really changed."""
_AT_WORK = 0.75
"""A sample says something about slowdown from this part of the mean use on."""
MAX_OBSERVED = 20.0
_SENSITIVITY = (250, 4000)
_PREDICTED = 1.02
"""From there on what is observed says something about the sensitivity."""
_TEMPLATE_HASH = "pod-template-hash"
_SCHEDULED = re.compile(r"-[0-9]{8,}$")


class Error(msgspec.Struct):
    """How far predictions were off, in slowdown; the mean is exponentially weighted."""

    count: int = 0
    absolute: float = 0.0
    bias: float = 0.0
    """Above 0: more was predicted than observed."""


class _Mean(msgspec.Struct):
    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) / min(self.count, MEMORY)


class _Known(msgspec.Struct):
    busy: _Mean = msgspec.field(default_factory=_Mean)
    bandwidth: _Mean = msgspec.field(default_factory=_Mean)
    launches_alone: _Mean = msgspec.field(default_factory=_Mean)
    sensitivity: _Mean = msgspec.field(default_factory=lambda: _Mean(1.0, 1))
    alone: bool = False
    """Whether the figures are of a container that had the GPU for itself, or whose waits were counted."""
    uid: str = ""
    """The pod that was seen last."""
    said: UseProfile | None = None
    """The profile that was given last."""


class Learner:
    def __init__(self, runs: Callable[[str], bool] = lambda _: False) -> None:
        """`runs`: whether the pod of this UID is still there."""
        self._runs = runs
        self._known: OrderedDict[Owner, _Known] = OrderedDict()
        self._of_namespace: dict[str, OrderedDict[Owner, None]] = {}
        self.errors: dict[Way, Error] = {}

    def __len__(self) -> int:
        return len(self._known)

    def sampled(self, owner: Owner, use: SliceUse, way: Way, predicted: float, *, alone: bool) -> None:
        """Records a sample of a container of this owner. `predicted`: its slowdown by `local.slowdown_of`, without its
        sensitivity; `alone`: no other slice is on the GPU."""
        known = self._entry(owner)
        if known is None:
            return
        known.uid = use.uid
        used = use.gpu_milli if use.gpu_milli is not None else use.sm_milli
        waited = None if use.waited_milli is None else min(900, use.waited_milli)
        ran = 1.0 if alone or waited is None else 1 - waited / WHOLE_GPU_MILLI
        trusted = alone or (waited is not None and way == "turns")
        if used is not None and (trusted or not known.alone):
            if trusted and not known.alone:
                known.alone, known.busy, known.bandwidth = True, _Mean(), _Mean()
            known.busy.add(min(1000.0, used / ran))
            if use.bandwidth_milli is not None and used:
                known.bandwidth.add(min(1000.0, 1000 * use.bandwidth_milli / used))
        if used is None or used / ran < _AT_WORK * known.busy.value:
            return
        if use.launches_per_s is not None and alone:
            known.launches_alone.add(use.launches_per_s)
        self._observe(known, use, way, predicted, waited, alone=alone)

    def profile(self, owner: Owner) -> UseProfile | None:
        """What containers of this owner do on a GPU; None while too little is known."""
        known = self._known.get(owner)
        if known is None or known.busy.count < MIN_SAMPLES:
            return None
        busy, bandwidth, sensitivity = known.busy.value, known.bandwidth.value, 1000 * known.sensitivity.value
        said = known.said
        if (
            said is None
            or _differs(said.busy_milli, busy)
            or _differs(said.bandwidth_milli, bandwidth)
            or _differs(said.sensitivity_milli, sensitivity)
        ):
            known.said = UseProfile(
                busy_milli=_rounded(busy),
                bandwidth_milli=_rounded(bandwidth),
                sensitivity_milli=_rounded(sensitivity),
            )
        return known.said

    def _entry(self, owner: Owner) -> _Known | None:
        """What is known of an owner, at first nothing; None where there is no room for it."""
        known = self._known.get(owner)
        mine = self._of_namespace.setdefault(owner[0], OrderedDict())
        if known is None:
            if len(mine) >= MAX_OF_NAMESPACE:
                room = self._make_room(mine)
            else:
                room = len(self._known) < MAX_OWNERS or self._make_room(self._known)
            if not room:
                return None
            known = self._known[owner] = _Known()
            mine = self._of_namespace.setdefault(owner[0], mine)  # the last one of it may have made room
        mine[owner] = None
        mine.move_to_end(owner)
        self._known.move_to_end(owner)
        return known

    def _make_room(self, among: OrderedDict[Owner, Any]) -> bool:
        """Forgets the owner seen longest ago that has no running pod. Returns whether there was one."""
        idle = next((one for one in islice(among, _LOOKED_AT) if not self._runs(self._known[one].uid)), None)
        if idle is None:
            return False
        del self._known[idle]
        of = self._of_namespace[idle[0]]
        del of[idle]
        if not of:
            del self._of_namespace[idle[0]]
        return True

    def _observe(
        self, known: _Known, use: SliceUse, way: Way, predicted: float, waited: int | None, *, alone: bool
    ) -> None:
        observed = _observed(known, use, way, waited)
        if alone or observed is None or known.busy.count < MIN_SAMPLES:
            return
        expected = 1 + known.sensitivity.value * (predicted - 1)
        error = self.errors.setdefault(way, Error())
        error.count += 1
        error.absolute += (abs(expected - observed) - error.absolute) / min(error.count, MEMORY)
        error.bias += (expected - observed - error.bias) / min(error.count, MEMORY)
        if predicted > _PREDICTED:
            low, high = _SENSITIVITY
            known.sensitivity.add(min(high, max(low, 1000 * (observed - 1) / (predicted - 1))) / 1000)


def owners_of(state: PodState) -> dict[str, Owner]:
    """By container with GPUs: its owner. Empty for a pod without a controller, of which no earlier one is known."""
    controller, request = state.controller, state.request
    if controller is None or request is None:
        return {}
    meta = state.pod.metadata
    name = controller.name
    if controller.kind == "ReplicaSet":
        name = name.removesuffix(f"-{meta.labels.get(_TEMPLATE_HASH, '')}")
    elif controller.kind == "Job":
        name = _SCHEDULED.sub("", name)
    return {container: (meta.namespace, controller.kind, name, container) for container in request.asks}


def _observed(known: _Known, use: SliceUse, way: Way, waited: int | None) -> float | None:
    """How many times as long it takes now; None: nobody sees it."""
    found = []
    if waited is not None and way == "turns":
        found.append(1 / (1 - waited / WHOLE_GPU_MILLI))
    if use.launches_per_s and known.launches_alone.count >= MIN_SAMPLES:
        found.append(known.launches_alone.value / use.launches_per_s)
    return min(MAX_OBSERVED, max(1.0, *found)) if found else None


def _differs(said: int, now: float) -> bool:
    return abs(now - said) >= max(_STEP_MILLI, said / 10)


def _rounded(milli: float) -> int:
    return round(milli / _STEP_MILLI) * _STEP_MILLI
