"""Decides what happens to pods that hold more GPU memory than their policed slices. Pure.

NVML's figure of a pod on a GPU is compared with the pod's grant there, and not with what its control blocks count: a
program that never loads the library is honest as long as it keeps to the grant.

| sample beyond the grant and the slack | what happens |
|---|---|
| the first | it is reported |
| the second | the pod is frozen, so that it can neither grow nor hide what it has |
| the next, taken while the pod is frozen | its processes are ended and it is evicted |

A frozen pod that the next sample finds within its grant is thawed at once. A pod that was beyond its grant is frozen at
the first sample that shows it again within a minute, because it may free the memory between two samples. A pod that was
ended once is ended again at the first such sample.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from services.node_agent.strategies.escapes import PodMemory

FREEZE_SAMPLES = 2
"""The pod is frozen at so many samples beyond its grant. A peer's figure may be wrong for a moment, and memory that a
process frees is in NVML's figure a little longer."""
FORGET_S = 60.0
"""After so long within its grant a pod is no longer suspect."""
MAX_FROZEN_S = 30.0
"""A pod whose GPU does not answer meanwhile is thawed after so long."""
FIRST_AGAIN_S, MAX_AGAIN_S = 30.0, 300.0
"""When an eviction is asked for again: the first time, and at most."""


class Excess(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's memory on one GPU beyond its grant and the slack."""

    held: PodMemory
    slack_mib: int
    seconds: float
    """Since the first sample that has shown it without a break."""

    @property
    def over_mib(self) -> int:
        return self.held.seen_mib - self.held.granted_mib - self.slack_mib

    @property
    def sentence(self) -> str:
        held = self.held
        return (
            f"pod {held.uid} has held more GPU memory than its slice for {self.seconds:.1f} s: {held.seen_mib} MiB on "
            f"GPU {held.uuid} according to NVML; {held.granted_mib} MiB are granted, and {self.slack_mib} MiB beyond "
            "that are tolerated"
        )


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that was beyond its grant within the last minute."""

    since_s: float
    """The first sample beyond its grant after the last one within it; infinity: the last sample was within it."""
    last_s: float
    """The last sample beyond its grant."""
    samples: int
    gpus: frozenset[str]
    """The UUIDs of the GPUs on which it was beyond its grant."""
    frozen_s: float | None = None
    """When its freeze was asked for; None: it is not frozen."""
    ended: bool = False
    """Its processes were ended once."""


Suspects = Mapping[str, Suspect]
"""By the pod's UID."""


class Actions(msgspec.Struct, frozen=True, kw_only=True):
    """What a sample leads to."""

    excesses: tuple[Excess, ...] = ()
    """All of this sample."""
    freeze: tuple[Excess, ...] = ()
    thaw: tuple[str, ...] = ()
    """UIDs of pods that were frozen and stay alive."""
    end: tuple[Excess, ...] = ()


def judge(
    before: Suspects,
    held: Iterable[PodMemory],
    *,
    pods: Collection[str],
    answering: Collection[str],
    slack_mib: int,
    now_s: float,
) -> tuple[dict[str, Suspect], Actions]:
    """Judges one sample. Returns the suspects after it, and what to do.

    `pods`: UIDs of all pods with policed slices. `answering`: UUIDs of the GPUs that the sample covers. `held`: one
    item for each pod and GPU on which the pod has processes. `now_s`: seconds of any monotonic clock.
    """
    worst: dict[str, PodMemory] = {}
    gpus: dict[str, set[str]] = {}
    beyond = [one for one in held if one.uid in pods and one.seen_mib > one.granted_mib + slack_mib]
    for one in beyond:
        gpus.setdefault(one.uid, set()).add(one.uuid)
        if one.uid not in worst or _over(one) > _over(worst[one.uid]):
            worst[one.uid] = one
    after: dict[str, Suspect] = {}
    excesses: list[Excess] = []
    freeze: list[Excess] = []
    end: list[Excess] = []
    thaw = [uid for uid, was in before.items() if uid not in pods and was.frozen_s is not None]
    for uid in sorted(pods):
        was = before.get(uid)
        if uid in worst:
            now = _beyond(was, frozenset(gpus[uid]), now_s)
            excess = Excess(held=worst[uid], slack_mib=slack_mib, seconds=now_s - now.since_s)
            excesses.append(excess)
            if was is not None and (was.ended or was.frozen_s is not None):
                end.append(excess)
                # It is thawed when its processes have the signal, so it counts as frozen no longer.
                now = msgspec.structs.replace(now, ended=True, frozen_s=None)
            elif now.samples >= FREEZE_SAMPLES:
                freeze.append(excess)
                now = msgspec.structs.replace(now, frozen_s=now_s)
            after[uid] = now
        elif was is not None:
            left = _within(was, frozenset(answering), now_s)
            if was.frozen_s is not None and (left is None or left.frozen_s is None):
                thaw.append(uid)
            if left is not None:
                after[uid] = left
    return after, Actions(excesses=tuple(excesses), freeze=tuple(freeze), thaw=tuple(thaw), end=tuple(end))


def _over(held: PodMemory) -> int:
    return held.seen_mib - held.granted_mib


def _beyond(was: Suspect | None, gpus: frozenset[str], now_s: float) -> Suspect:
    """The suspect after a sample beyond its grant."""
    if was is None:
        return Suspect(since_s=now_s, last_s=now_s, samples=1, gpus=gpus)
    since_s = was.since_s if was.since_s <= was.last_s else now_s
    return msgspec.structs.replace(was, since_s=since_s, last_s=now_s, samples=was.samples + 1, gpus=gpus)


def _within(was: Suspect, answering: frozenset[str], now_s: float) -> Suspect | None:
    """The suspect after a sample that does not show it beyond its grant; None: it is no suspect any more."""
    if not was.gpus <= answering:
        # Nothing is known of the GPU. The pod stays as it is, but not frozen for ever.
        if was.frozen_s is not None and now_s - was.frozen_s >= MAX_FROZEN_S:
            return msgspec.structs.replace(was, frozen_s=None)
        return was
    if now_s - was.last_s >= FORGET_S:
        return None
    return msgspec.structs.replace(was, frozen_s=None, since_s=float("inf"))


class EvictionBackoff:
    """When the eviction of a pod is asked for again: after 30 s, then twice as long each time, 5 minutes at most."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[float, float]] = {}
        """By the pod's UID: when it was asked for last, and how long to wait after that."""

    def due(self, uid: str, now_s: float) -> bool:
        """Whether to ask now. If so, the next time is later."""
        at_s, wait_s = self._asked.get(uid, (float("-inf"), 0.0))
        if now_s - at_s < wait_s:
            return False
        self._asked[uid] = now_s, min(MAX_AGAIN_S, max(FIRST_AGAIN_S, 2 * wait_s))
        return True

    def keep_only(self, uids: Collection[str]) -> None:
        """Forgets all other pods."""
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in uids}
