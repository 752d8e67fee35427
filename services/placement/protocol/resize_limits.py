"""Whether slices of a running pod may have other amounts: their node, room on the GPUs, quotas, and the request."""

from __future__ import annotations

from services.placement.protocol.capacity_changes import CapacityChanges
from services.placement.protocol.nodes import Nodes
from services.placement.scheduling.fair.fair import Fair
from shared.book.book import Book
from shared.book.states import GrantState, PodState
from shared.model import names
from shared.model.grant import Grant, sum_shares
from shared.model.resize import beyond_request
from shared.model.units import format_mib


class ResizeLimits:
    def __init__(
        self, book: Book, nodes: Nodes, fair: Fair, capacity_changes: CapacityChanges, *, beyond_request: bool
    ) -> None:
        """`beyond_request`: whether slices may have more than their pods request, where no ResourceQuota forbids it."""
        self._book, self._nodes, self._fair = book, nodes, fair
        self._capacity_changes, self._beyond_request = capacity_changes, beyond_request
        self._quotas: dict[str, str] | None = None
        """By namespace, a ResourceQuota that counts GPUs; None: they were not looked at yet."""
        self._changes = -1
        """How many changes of capacity there were by then: each may be one of a quota."""

    def obstacle(self, state: PodState, held: GrantState) -> str:
        """Why nothing of the pod's slices can change now."""
        node = self._book.nodes.get(held.node)
        if held.client:
            return f"its GPU is of another node, {held.node}: such slices are not resized"
        if state.suspension is not None or held.suspension is not None:
            return "the pod is suspended; its slices are resized when it has resumed"
        if held.parked:
            return "the pod's GPU memory is on the host, or about to be; its slices are resized when it is back"
        if node is None or node.agent_trouble:
            return f"node {held.node}: {'it is gone' if node is None else node.agent_trouble}"
        if held.node not in self._nodes.resizing:
            return f"the agent of node {held.node} is of a version that resizes no slices; update it"
        return ""

    def lacks(self, state: PodState, held: GrantState, wanted: Grant) -> str:
        """Why the pod may not have these larger amounts now; empty if it may."""
        node = self._book.nodes[held.node]
        for _, uuid in sum_shares((wanted,)):
            room = node.by_uuid.get(uuid)
            if room is None or not room.usable:
                return f"GPU {uuid}: {'the node does not have it' if room is None else room.why_unusable}"
        return self.forbidden(state, held, wanted) or self.lacks_room(held, wanted)

    def lacks_room(self, held: GrantState, wanted: Grant) -> str:
        given = sum_shares((held.given,))
        for (name, uuid), (mib, milli) in sum_shares((wanted,)).items():
            node = self._book.nodes.get(name)
            room = None if node is None else node.by_uuid.get(uuid)
            if room is None:
                return f"GPU {uuid}: it is not known yet"
            more_mib, more_milli = mib - given[name, uuid][0], milli - given[name, uuid][1]
            kept = "; a place on it is kept for a plan" if room.kept else ""
            if 0 < more_mib > room.free_mib:
                return (
                    f"Insufficient memory on GPU {uuid}: it needs {format_mib(more_mib, up=True)} more, and "
                    f"{format_mib(max(0, room.free_mib))} of {format_mib(room.total_mib)} are free{kept}"
                )
            if 0 < more_milli > room.free_milli:
                return (
                    f"Insufficient compute on GPU {uuid}: it needs {more_milli / 10:g} % more, and "
                    f"{max(0, room.free_milli) / 10:g} % are free{kept}"
                )
        return ""

    def forbidden(self, state: PodState, held: GrantState, wanted: Grant) -> str:
        """Why quotas do not allow the pod these larger amounts; empty if they do."""
        over = self._fair.growth_exceeded(state, held.given, wanted)
        return self._beyond(state, wanted) or ("" if over is None else f"{over.sentence}; {over.helps}")

    def _beyond(self, state: PodState, wanted: Grant) -> str:
        """Why the pod may not have more than it requests; empty if it has not, or may.

        The API server has counted its request. It does not count what a slice has grown by, so a later pod would get
        all that the quota leaves, and the namespace more than its quota.
        """
        if self._quotas is None or self._changes != self._capacity_changes.count:
            self._changes = self._capacity_changes.count
            self._quotas = {
                quota.metadata.namespace: quota.metadata.name
                for quota in self._book.others.get("ResourceQuota", {}).values()
                if any(_counts_gpus(key.removeprefix("requests.")) for key in quota.spec.get("hard") or {})
            }
        rule = "" if self._beyond_request else "the setting resize_beyond_request is off"
        if quota := self._quotas.get(state.pod.metadata.namespace):
            rule = f"ResourceQuota {quota} counts what pods request"
        beyond = beyond_request(wanted, state.request, self._total_mib) if rule else ""
        return beyond and f"{rule}, and {beyond}; it cannot grow beyond that: create the pod anew with a larger request"

    def _total_mib(self, node: str, uuid: str) -> int | None:
        state = self._book.nodes.get(node)
        room = None if state is None else state.by_uuid.get(uuid)
        return None if room is None else room.total_mib


def _counts_gpus(resource: str) -> bool:
    return names.is_gpu_resource(resource) or resource == names.RESOURCE_QUOTA
