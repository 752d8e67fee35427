"""What a filter is. One file each; `shared/scheduling/filters/__init__.py` registers filters in the order in which
they run.

Scopes:
- `node`: depends on declared fields of the pod (`reads`), and on the Node object, inventory or agent alone. Cached
  until those change.
- `room`: what is left on a node. `services.placement.free_capacity` checks the same on all nodes at once; this filter
  runs for a single node only to explain. Not for plug-ins.
- `cluster`: depends on other pods or other objects. Prepared anew for each decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.scheduling.filters.remedies import Remedy

Check = Callable[[NodeState], Reason | None]
"""None: the node passes."""
Scope = Literal["node", "room", "cluster"]


class Filter:
    """One kind of reasons to exclude nodes.

    It has no state: what concerns a pod is in the check of `prepare`.
    """

    name: ClassVar[str]
    scope: ClassVar[Scope]
    reads: ClassVar[tuple[str, ...]] = ()
    """Scope `node`: the fields of the pod that decide, as paths from PodState (`shared.scheduling.fields`). Pods with
    equal declared fields share a cached row; reading another field raises an error that names it."""
    reads_node: ClassVar[tuple[str, ...] | None] = None
    """Scope `node`: the fields of the node that decide besides labels, taints, the agent's state and the GPUs, as paths
    from NodeState. Nodes that are equal in all of these are checked once. None: every node is checked by itself."""
    remedies: ClassVar[Mapping[str, Remedy]] = {}
    """By the code of a reason that this filter gives: the changes of the pod that could remove it. For a code without
    remedies `helps` of the reason is suggested as it stands."""

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        """The check for this pod, or None where the filter has nothing to say about it."""
        raise NotImplementedError

    def concerns(self, pod: PodState, book: Book) -> bool:
        """Whether there is a check for this pod. Where a check is costly to prepare, this is not."""
        return self.prepare(pod, book) is not None
