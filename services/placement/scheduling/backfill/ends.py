"""When placed pods end: as far as they say, and an estimate where they do not."""

from __future__ import annotations

import msgspec

from shared.book.states import PodState
from shared.model.life import STUCK_S, ends_by, started_at

_SERVERS = ("DaemonSet", "Deployment", "ReplicaSet", "ReplicationController", "StatefulSet")
"""Controllers whose pods run until they are deleted."""
_SERVES_S = 10.0 * 365 * 86_400
"""Added to the estimate for such a pod: it comes after all pods that end by themselves."""


class End(msgspec.Struct, frozen=True, order=True):
    at: float
    uid: str
    by: str
    key: str
    """namespace/name"""


def end_of(state: PodState, now: float) -> End | None:
    """When a placed pod ends, as far as it says. A pod that should have ended already counts as unknown; a pod that has
    not started counts as started now. `now`: seconds since 1970."""
    deadline_s, expected_s, deleted = state.pod.spec.active_deadline_seconds, state.life.expected_s, ends_by(state.pod)
    if deadline_s is expected_s is deleted is None:
        return None
    started = started_at(state.pod)
    since = now if started is None else started
    ends = []
    if deleted is not None and now < deleted + STUCK_S:
        ends.append(End(max(now, deleted), state.uid, "deletion", state.key))
    if deadline_s is not None:
        ends.append(End(max(now, since + deadline_s), state.uid, "deadline", state.key))
    if expected_s is not None and since + expected_s >= now:
        ends.append(End(since + expected_s, state.uid, "expected", state.key))
    return min(ends, default=None)


def estimated_s(state: PodState, now: float) -> float:
    """How many seconds a placed pod is expected to run on. `now`: seconds since 1970.

    Where nothing is known: as long as it has run so far, which is the expectation where run times have a heavy tail
    (decision 0259). Only an order is made of it."""
    end = end_of(state, now)
    if end is not None:
        return end.at - now
    started = started_at(state.pod)
    age_s = 0.0 if started is None else max(0.0, now - started)
    controller = state.controller
    return age_s + (_SERVES_S if controller is not None and controller.kind in _SERVERS else 0.0)
