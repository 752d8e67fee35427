"""The reflector's logic: turns lists and watch events of one kind into facts. Pure; `reflector.py` does the I/O.

It knows every object that exists as far as it has been told, so it can say what a new list lacks, and it passes on each
version of an object once.
"""

from __future__ import annotations

from typing import Any

from shared.contracts.facts import Fact, Gone, Put
from shared.kube.decoder import Bookmark
from shared.model.kinds import Object
from shared.model.kube_object import Meta
from shared.model.objects import version, version_number

INITIAL_END = "k8s.io/initial-events-end"
"""The annotation on the bookmark that ends a WatchList's initial events (KEP-3157)."""


class Reflection:
    """What is known of one kind. A watch resumes from `resource_version`; "" if there is none."""

    def __init__(self) -> None:
        self.resource_version = ""
        self._known: dict[str, Object] = {}
        self._uids: dict[tuple[str, str], str] = {}
        self._listed: set[str] | None = None
        """While a list is read: the uids that it has named."""

    def __len__(self) -> int:
        return len(self._known)

    @property
    def version(self) -> int:
        """`resource_version` as a number; 0 where it is none."""
        return version_number(self.resource_version)

    @property
    def listing(self) -> bool:
        return self._listed is not None

    def begin_list(self) -> None:
        """A list follows: objects that it does not name are gone at its end."""
        self._listed = set()

    def listed(self, objects: tuple[Object, ...] | list[Object]) -> list[Fact]:
        """A part of the list."""
        return [fact for seen in objects for fact in self._put(seen)]

    def end_list(self, resource_version: str) -> list[Fact]:
        """The list is complete, as of this version."""
        named, self._listed = self._listed or set(), None
        self.resource_version = resource_version
        return [self._drop(seen, certain=False) for uid, seen in list(self._known.items()) if uid not in named]

    def abandon_list(self) -> None:
        """The list broke off: objects that it named are updated, the others are kept."""
        self._listed = None
        self.resource_version = ""

    def event(self, kind: str, seen: Any) -> list[Fact]:
        """One watch event; an initial event of a WatchList if a list was begun."""
        if kind == "BOOKMARK":
            mark: Bookmark = seen.metadata
            if self._listed is not None:
                return self.end_list(mark.resource_version) if mark.annotations.get(INITIAL_END) == "true" else []
            self.resource_version = mark.resource_version
            return []
        meta: Meta = seen.metadata
        if self._listed is None:
            self.resource_version = meta.resource_version
        if kind != "DELETED":
            return self._put(seen)
        known = self._known.get(meta.uid)
        if known is None:
            return []  # gone before it was known, or reported already
        if self._listed is not None:
            self._listed.discard(meta.uid)
        return [self._drop(known, last=seen)]

    def expired(self) -> None:
        """410: no version to resume from; a list must follow."""
        self.resource_version = ""

    def _put(self, seen: Object) -> list[Fact]:
        meta, facts = seen.metadata, []
        if self._listed is not None:
            self._listed.add(meta.uid)
        known = self._known.get(meta.uid)
        if known is not None and version(known.metadata) >= version(meta):
            return []
        if known is None:
            before = self._uids.get((meta.namespace, meta.name))
            if before is not None:
                # Another object has this name now, and the deletion of the old one was not reported.
                facts.append(self._drop(self._known[before], certain=False))
        self._known[meta.uid] = seen
        self._uids[meta.namespace, meta.name] = meta.uid
        return [*facts, Put(object=seen)]

    def _drop(self, known: Object, *, last: Object | None = None, certain: bool = True) -> Fact:
        meta = known.metadata
        del self._known[meta.uid]
        if self._uids.get((meta.namespace, meta.name)) == meta.uid:
            del self._uids[meta.namespace, meta.name]
        return Gone(object=last or known, certain=certain)
