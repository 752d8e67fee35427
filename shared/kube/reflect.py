"""The reflector's logic: turns lists and watch events of one kind into facts. Pure; `reflector.py` does the I/O.

It knows every object that exists as far as it has been told, so it can say what a new list lacks, and it passes on each
version of an object once.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shared.contracts.facts import Fact, Gone, Put
from shared.kube.gangs import decoder_of
from shared.kube.resources import Resource
from shared.model.kinds import KINDS, Object
from shared.model.kube_object import Meta
from shared.model.objects import Gang, version

INITIAL_END = "k8s.io/initial-events-end"
"""The annotation on the bookmark that ends a WatchList's initial events (KEP-3157)."""


class WatchError(Exception):
    """The server ended the watch with a Status instead of an object. 410: the version to resume from is too old."""

    def __init__(self, code: int, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.retry_after_s = retry_after_s


class Undecodable(ValueError):
    """An object that cannot be decoded. It is left out; the text says which one and why."""


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class _MarkMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] = {}


class _Mark(msgspec.Struct, frozen=True):
    metadata: _MarkMeta


class _Head(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: tuple[msgspec.Raw, ...] = ()


class Page(msgspec.Struct, frozen=True):
    """One page of a list. `more` is the token for the next one."""

    objects: tuple[Object, ...]
    resource_version: str
    more: str
    unreadable: tuple[str, ...] = ()


class Decoder:
    """Decodes one kind's lists and watches."""

    def __init__(self, resource: Resource) -> None:
        self.kind = KINDS[resource.kind]
        self._object = (
            decoder_of(resource.plural, resource.group) if self.kind is Gang else msgspec.json.Decoder(self.kind)
        )
        self._head = msgspec.json.Decoder(_Head)
        self._list = msgspec.json.Decoder(_List)
        self._status = msgspec.json.Decoder(_Status)
        self._mark = msgspec.json.Decoder(_Mark)

    def event(self, line: bytes) -> tuple[str, Any]:
        """(ADDED, MODIFIED or DELETED, object), or (BOOKMARK, _Mark). Raises WatchError, and Undecodable."""
        try:
            head = self._head.decode(line)
        except msgspec.DecodeError as error:
            raise Undecodable(f"a watch event of {self.kind.__name__} cannot be read: {error}") from error
        if head.type == "ERROR":
            status = self._status.decode(head.object)
            raise WatchError(status.code, status.message)
        try:
            return head.type, self._mark.decode(head.object) if head.type == "BOOKMARK" else self._object.decode(
                head.object
            )
        except msgspec.DecodeError as error:
            raise Undecodable(f"{self._title(head.object)}: {error}") from error

    def page(self, body: bytes) -> Page:
        """Raises Undecodable if it is not a list; single objects that cannot be decoded are named in the page."""
        try:
            listed = self._list.decode(body)
        except msgspec.DecodeError as error:
            raise Undecodable(f"a list of {self.kind.__name__} cannot be read: {error}") from error
        objects, unreadable = [], []
        for raw in listed.items:
            try:
                objects.append(self._object.decode(raw))
            except msgspec.DecodeError as error:
                unreadable.append(f"{self._title(raw)}: {error}")
        return Page(tuple(objects), listed.metadata.resource_version, listed.metadata.continue_, tuple(unreadable))

    def _title(self, raw: msgspec.Raw) -> str:
        try:
            meta = msgspec.json.decode(raw, type=_Titled).metadata
        except msgspec.DecodeError:
            return f"a {self.kind.__name__} without a name"
        return f"{self.kind.__name__} {meta.namespace}/{meta.name}"


class _Title(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""


class _Titled(msgspec.Struct, frozen=True):
    metadata: _Title = _Title()


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
            mark: _MarkMeta = seen.metadata
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


class Lines:
    """Chunks of bytes into lines, as a watch sends its events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete now."""
        *lines, self._rest = (self._rest + chunk if self._rest else chunk).split(b"\n")
        return [line for line in lines if line]
