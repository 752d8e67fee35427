"""Says which placed pods may be disrupted, and what that costs."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import msgspec

from shared.book.book import Book
from shared.book.states import PodState
from shared.model.life import NOT_PREEMPTIBLE, created_at, lost_s, started_at
from shared.model.objects import Volume
from shared.model.selectors import labels_match


class DisruptionCost(msgspec.Struct, frozen=True):
    """A pod and its price, ordered by price, then the newest, then the smallest."""

    price_gpu_ms: int
    gpu_milli: int
    uid: str
    node: str
    created_s: int = 0
    """Creation time in seconds since 1970; 0 if unknown."""

    @property
    def order(self) -> tuple[int, int, int, str]:
        return self.price_gpu_ms, -self.created_s, self.gpu_milli, self.uid


def gpu_milli(state: PodState, book: Book) -> int:
    """Returns the GPU milli of a pod's grant, suspended or not: per GPU the larger of memory and compute part."""
    held = book.grants.get(state.grant_id)
    taken = 0
    for container in () if held is None else held.given.containers.values():
        for share in container.gpus:
            node = book.nodes.get(share.node)
            room = None if node is None else node.by_uuid.get(share.uuid)
            taken += max(share.compute_milli, 0 if room is None else share.memory_mib * 1000 // max(1, room.total_mib))
    return taken


def price_of(state: PodState, book: Book, now: float) -> DisruptionCost:
    """Returns the cost of a disruption: the pod's GPUs times its run time, or times its `restart-cost` within
    the bound of `lost_s`."""
    started = started_at(state.pod)
    run_s = 0 if started is None else max(0, round(now - started))
    milli = gpu_milli(state, book)
    price = milli * lost_s(state.life.restart_cost_s, run_s)
    return DisruptionCost(price, milli, state.uid, state.charged, round(created_at(state.pod) or 0))


def why_not_disruptable(
    state: PodState,
    book: Book,
    now: float,
    *,
    priority: float = inf,
    leaves: bool = False,
    stays: bool = False,
    spare: bool = False,
    budgets: bool = True,
) -> str:
    """Returns in a few words why a placed pod may not be disrupted; empty if it may.

    `priority`: of the pod that needs its capacity; a pod of higher priority is not disrupted for it. `leaves`: the
    pod is evicted and need not run elsewhere; the caller checks its gang (`Gangs.must_end_with`). `stays`: it is only
    suspended. `spare`: its gang does not need it any more. `budgets`: whether a disruption budget that allows no
    eviction at the moment counts.
    """
    if not state.ours:
        return "not Kerf's"
    if not state.seen_bound or state.ended or state.pod.metadata.deletion_timestamp is not None:
        return "starting or ending"
    if state.pod.spec.priority > priority:
        return "higher priority"
    if not state.life.preemptible:
        return NOT_PREEMPTIBLE
    if stays:
        return ""
    if state.gang is not None and not (leaves or spare):
        return "gang"
    if state.refusal and not leaves:  # to be placed elsewhere it has to be read; to end, it has not
        return "refused as it is written"
    if not leaves and any(_holds_data(volume) for volume in state.pod.spec.volumes):
        return "volumes"
    least_s, started = state.life.min_runtime_s, started_at(state.pod)
    if not leaves and state.life.stays_s and (started is None or now - started < state.life.stays_s):
        return "not to be moved"
    if least_s is not None and (started is None or now - started < least_s):
        return "minimum run time"
    allowed = budgets_of(state, book)
    if len(allowed) > 1:
        return "several disruption budgets"  # the API server evicts no pod under more than one
    return "disruption budget" if budgets and any(count < 1 for count in allowed.values()) else ""


def _holds_data(volume: Volume) -> bool:
    """Whether a volume may be tied to the pod's node. A service account token is not."""
    return any(
        (
            volume.persistent_volume_claim,
            volume.ephemeral,
            volume.gce_persistent_disk,
            volume.aws_elastic_block_store,
            volume.rbd,
            volume.iscsi,
        )
    )


def budgets_of(state: PodState, book: Book) -> dict[str, int]:
    """Returns the names of a pod's PodDisruptionBudgets, with the disruptions that each allows now."""
    namespace, labels = state.pod.metadata.namespace, state.pod.metadata.labels
    return {
        f"{namespace}/{budget.metadata.name}": budget.status.disruptions_allowed
        for budget in book.others.budgets(namespace)
        if labels_match(budget.spec.selector, labels)
    }


def disruptions_fit(pods: Iterable[PodState], book: Book) -> bool:
    """Whether the disruption budgets allow to disrupt all of these together."""
    left: dict[str, int] = {}
    for state in pods:
        for name, allowed in budgets_of(state, book).items():
            left[name] = left.get(name, allowed) - 1
    return all(count >= 0 for count in left.values())
