"""What a filter is. One file each; `shared/scheduling/filters/__init__.py` registers filters in the order in which
they run.

Scopes:
- `node`: depends on the pod's shape and on the Node object, inventory or agent alone. Placement caches it per shape
  until those change.
- `cluster`: depends on other pods, other objects, or fields of the pod outside its shape. Prepared for each decision.
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


class Filter:
    """One kind of reasons to exclude nodes.

    It has no state: what concerns a pod is in the check of `prepare`.
    """

    name: ClassVar[str]
    scope: ClassVar[Literal["node", "cluster"]]
    remedies: ClassVar[Mapping[str, Remedy]] = {}
    """By the code of a reason that this filter gives: the changes of the pod that could remove it. For a code without
    remedies `helps` of the reason is suggested as it stands."""

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        """The check for this pod, or None where the filter has nothing to say about it."""
        raise NotImplementedError
