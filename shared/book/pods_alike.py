"""Pods by namespace, and in each by what makes them alike: a term that selects pods is compared once with all that a
controller has made, and not with each of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from shared.book.states import PodState

Group = dict[str, PodState]
"""Pods that are alike, by uid."""


class PodsAlike:
    def __init__(self, where: Callable[[PodState], str], likeness: Callable[[PodState], Hashable]) -> None:
        """`where`: the namespace under which a pod is found. Neither may change while a pod is in here:
        one with other labels or terms is read anew (`states.is_read_alike`)."""
        self._where, self._likeness = where, likeness
        self._groups: dict[str, dict[Hashable, Group]] = {}
        self._shared: dict[str, set[Hashable] | None] = {}
        """Of a twin, by namespace: the groups that belong to its origin too; None: the whole namespace does."""

    def put(self, state: PodState) -> None:
        """One with the same uid that is alike is replaced."""
        self._own(self._where(state), self._likeness(state))[state.uid] = state

    def drop(self, state: PodState) -> None:
        namespace, likeness = self._where(state), self._likeness(state)
        group = self._own(namespace, likeness)
        group.pop(state.uid, None)
        if not group:
            del self._groups[namespace][likeness]
        if not self._groups[namespace]:
            del self._groups[namespace]
            self._shared.pop(namespace, None)

    def within(self, namespace: str) -> Iterator[Group]:
        """The groups of a namespace; none of them is empty."""
        return iter(self._groups.get(namespace, {}).values())

    def namespaces(self) -> list[str]:
        """Those with pods."""
        return list(self._groups)

    def __iter__(self) -> Iterator[PodState]:
        return (state for groups in self._groups.values() for group in groups.values() for state in group.values())

    def twin(self) -> PodsAlike:
        """A copy that changes by itself while its origin does not change; a namespace is copied at its first change,
        and each group of it at its own."""
        twin = PodsAlike(self._where, self._likeness)
        twin._groups = dict(self._groups)
        twin._shared = dict.fromkeys(self._groups)
        return twin

    def part(self) -> None:
        """Copies all that is still shared with the origin."""
        for namespace in self._shared:
            self._groups[namespace] = {likeness: dict(group) for likeness, group in self._groups[namespace].items()}
        self._shared.clear()

    def _own(self, namespace: str, likeness: Hashable) -> Group:
        if namespace in self._shared:
            shared = self._shared[namespace]
            if shared is None:
                groups = self._groups[namespace] = dict(self._groups[namespace])
                shared = self._shared[namespace] = set(groups)
            if likeness in shared:
                shared.discard(likeness)
                self._groups[namespace][likeness] = dict(self._groups[namespace][likeness])
        return self._groups.setdefault(namespace, {}).setdefault(likeness, {})
