"""What pods do on their GPUs: declared, or learned from the samples of earlier pods of the same owner."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from shared.book.book import Book
from shared.book.granted_use import granted_use
from shared.book.shares import GpuRoom
from shared.book.states import NodeState, PodState
from shared.contracts.samples import SliceUse, UsageSample
from shared.model.use import UseProfile
from shared.scheduling.slowdown.learning import Learner, Owner, owners_of
from shared.scheduling.slowdown.local import Sharer, way_of
from shared.scheduling.slowdown.outlook import neighbours_on, slowdown_beside


class Profiles:
    def __init__(self, book: Book, *, weigh_learned: bool, changed: Callable[[], None]) -> None:
        """`weigh_learned`: a pod that declares nothing is weighed as soon as its owner is known. `changed` is called
        when a running pod turns out to do something else than was known, and that may help one that waits."""
        self._book, self._weigh_learned, self._changed = book, weigh_learned, changed
        self.learner = Learner(runs=book.pods.__contains__)
        self._weighs = False
        """Whether there has been a pod that is weighed: what is learned wakes no others."""

    def attach(self, state: PodState) -> None:
        """Gives a waiting pod what is known of its owner, if sharing is weighed for it."""
        if not (state.adaptive or self._weigh_learned):
            return
        self._learned(state)
        state.adaptive = state.adaptive or bool(state.uses)
        self._weighs = self._weighs or state.adaptive

    def sampled(self, sample: UsageSample) -> None:
        """Takes one sample of a node."""
        node = self._book.nodes.get(sample.node)
        if node is None:
            return
        changed = False
        for gpu in granted_use(sample, self._book).gpus:
            room = node.by_uuid.get(gpu.uuid)
            for use in gpu.slices:
                state = self._book.pods.get(use.uid)
                if state is None or room is None:
                    continue
                owners = owners_of(state)
                container = use.container or (next(iter(owners)) if len(owners) == 1 else "")
                if container not in owners:
                    continue
                self._learn((owners[container], container), state, use, node, room)
                changed |= self._learned(state)
        if changed and self._weighs:
            self._book.arrays.note(node.row)
            self._changed()

    def _learn(self, of: tuple[Owner, str], state: PodState, use: SliceUse, node: NodeState, room: GpuRoom) -> None:
        owner, container = of
        held = self._book.grants.get(state.grant_id)
        granted = None if held is None else held.grant.containers.get(container)
        if granted is None:
            return
        way = way_of(granted.limited_by)
        near = neighbours_on(node).get(room.uuid, [])
        here = (state.key, container)
        mine = next((one.sharer for one in near if (one.pod, one.container) == here and one.known), None)
        others = [(one.sharer, one.way) for one in near if (one.pod, one.container) != here]
        predicted = 1.0 if mine is None else slowdown_beside(_plain(mine), way, others)
        self.learner.sampled(owner, use, way, predicted, alone=room.containers == 1)

    def _learned(self, state: PodState) -> bool:
        """Gives a pod the newest that is known of it. Returns whether that is something else than before. Of what it
        declares and what was measured the larger counts: neighbours' bounds are not to hang on its word."""
        declared = None if state.request is None else state.request.use
        changed = False
        for container, owner in owners_of(state).items():
            found = self.learner.profile(owner)
            if found is None:
                continue
            if declared is not None:
                found = msgspec.structs.replace(
                    declared,
                    busy_milli=max(declared.busy_milli, found.busy_milli),
                    bandwidth_milli=max(declared.bandwidth_milli, found.bandwidth_milli),
                    sensitivity_milli=found.sensitivity_milli,
                )
            if state.uses.get(container) != found:
                state.uses = {**state.uses, container: found}
                changed = True
        held = self._book.grants.get(state.grant_id)
        if held is not None:
            held.uses = state.uses
        return changed


def _plain(sharer: Sharer) -> Sharer:
    """Without what has been learned of its sensitivity."""
    use: UseProfile = msgspec.structs.replace(sharer.use, sensitivity_milli=1000)
    return msgspec.structs.replace(sharer, use=use)
