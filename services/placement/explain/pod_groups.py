"""What Kubernetes' PodGroups should say of their scheduling, as kube-scheduler says it of its own.

Source: kubernetes/kubernetes `pkg/scheduler/schedule_one_podgroup.go:updatePodGroupCondition`: True once the group's
minimum has been scheduled, and for ever then; False with Unschedulable after an attempt that came to nothing, with
SchedulerError where something else than room is the reason. A `basic` group counts as one that needs a single pod.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.placement.explain.pending_reasons import Said
from shared.book.book import Book
from shared.book.gangs import Gangs, GangState
from shared.contracts.commands import ReportPodGroup
from shared.model.gang import POD_GROUP
from shared.model.objects import Gang

LOOK_S = 1.0
AGAIN_S = 10.0
"""How long an order may take to show on the object before it is repeated; and how often a reason may change there."""
MOST_AT_ONCE = 50

_Said = tuple[bool, str, str]
"""scheduled, reason, message"""


class PodGroupConditions:
    """Orders for PodGroups that say something else than what is so. It remembers only what it has ordered lately:
    the objects say what has arrived."""

    def __init__(self, book: Book, gangs: Gangs, gangs_said: Mapping[str, str], pods_said: Mapping[str, Said]) -> None:
        """`gangs_said` and `pods_said`: the reasons that were reported last, by namespace/name of a gang and by uid of
        a pod."""
        self._book, self._gangs = book, gangs
        self._gangs_said, self._pods_said = gangs_said, pods_said
        self._ordered: dict[str, tuple[_Said, float]] = {}
        self._look_at = float("-inf")

    def due(self, now: float) -> tuple[ReportPodGroup, ...]:
        if now < self._look_at:
            return ()
        self._look_at = now + LOOK_S
        known: Mapping[str, Gang] = self._book.others.get(Gang.__name__, {})
        found: list[tuple[bool, float, str, Gang, _Said]] = []
        ordered: dict[str, tuple[_Said, float]] = {}
        for path in self._gangs.sources():
            if f"/{POD_GROUP}/" not in path or (group := known.get(path)) is None:
                continue
            wanted = self._wanted(path, group)
            if wanted is None or _stands(group, wanted):
                continue
            last = self._ordered.get(path)
            if last is not None:
                ordered[path] = last
                if now - last[1] < AGAIN_S and not (wanted[0] and not last[0][0]):
                    continue
            found.append((not wanted[0], float("-inf") if last is None else last[1], path, group, wanted))
        # Groups that are scheduled first, then those that have waited longest: some may be refused again and again.
        found.sort(key=lambda one: one[:3])
        for _, _, path, _, wanted in found[:MOST_AT_ONCE]:
            ordered[path] = (wanted, now)
        self._ordered = ordered
        return tuple(_order(group, wanted) for *_, group, wanted in found[:MOST_AT_ONCE])

    def _wanted(self, path: str, group: Gang) -> _Said | None:
        """None where there is nothing to say (yet)."""
        named = (self._book.pods.get(uid) for uid in self._gangs.naming(path))
        ours = [state for state in named if state is not None and state.ours]
        if not ours or (group.scheduled is not None and group.scheduled.status == "True"):
            return None
        gang = self._gangs.by_key.get(path)
        if gang is not None:
            return _of_gang(gang, group, self._gangs_said.get(path, ""))
        if not group.parent and any(state.pod.spec.node_name for state in ours):
            return True, "Scheduled", "a pod of the group is bound"
        sentence = next((self._pods_said[state.uid].sentence for state in ours if state.uid in self._pods_said), "")
        return (False, "Unschedulable", sentence) if sentence else None


def _of_gang(gang: GangState, group: Gang, sentence: str) -> _Said | None:
    if group.metadata.uid in gang.whole_runs:  # pods of a former object of this name say nothing of it
        pods = "pod" if gang.minimum == 1 else "pods"
        return True, "Scheduled", f"the {gang.minimum} {pods} that must be placed together are bound"
    if not sentence or gang.satisfied:
        return None
    return False, "SchedulerError" if gang.problem else "Unschedulable", sentence


def _stands(group: Gang, wanted: _Said) -> bool:
    has = group.scheduled
    return has is not None and (has.status == "True", has.reason, has.message) == wanted


def _order(group: Gang, wanted: _Said) -> ReportPodGroup:
    scheduled, reason, message = wanted
    return ReportPodGroup(
        uid=group.metadata.uid,
        namespace=group.metadata.namespace,
        name=group.metadata.name.partition("/")[2],
        scheduled=scheduled,
        reason=reason,
        message=message,
    )
