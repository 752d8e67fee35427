"""Decodes the lists and watches of one kind."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.formats import UNREADABLE
from shared.kube.gangs.decoder import decoder_of
from shared.kube.resources import Resource
from shared.model.kinds import KINDS, Object
from shared.model.objects import Gang, Pod, version_number
from shared.model.pod_resize import without_settled


class Denied(Exception):
    """The server says that this account may not list or watch the kind (401, 403), or has no such kind (404)."""


class Absent(Exception):
    """The server has no such kind, which is allowed."""


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


class Bookmark(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] = {}


class _Mark(msgspec.Struct, frozen=True):
    metadata: Bookmark


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

    @property
    def version(self) -> int:
        """`resource_version` as a number; 0 where it is none."""
        return version_number(self.resource_version)


class Decoder:
    """Decodes one kind's lists and watches."""

    def __init__(self, resource: Resource, kind: type[Any] | None = None) -> None:
        """`kind`: what to decode instead of the model's type, for kinds that only one service follows."""
        self.kind: type[Any] = kind or KINDS[resource.kind]
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
        except UNREADABLE as error:
            raise Undecodable(f"a watch event of {self.kind.__name__} cannot be read: {error}") from error
        try:
            if head.type == "ERROR":
                status = self._status.decode(head.object)
                raise WatchError(status.code, status.message)
            return head.type, self._mark.decode(head.object) if head.type == "BOOKMARK" else self._read(head.object)
        except UNREADABLE as error:
            raise Undecodable(f"{self._title(head.object)}: {error}") from error

    def page(self, body: bytes) -> Page:
        """Raises Undecodable if it is not a list; single objects that cannot be decoded are named in the page."""
        try:
            listed = self._list.decode(body)
        except UNREADABLE as error:
            raise Undecodable(f"a list of {self.kind.__name__} cannot be read: {error}") from error
        objects, unreadable = [], []
        for raw in listed.items:
            try:
                objects.append(self._read(raw))
            except UNREADABLE as error:
                unreadable.append(f"{self._title(raw)}: {error}")
        return Page(tuple(objects), listed.metadata.resource_version, listed.metadata.continue_, tuple(unreadable))

    def _read(self, raw: msgspec.Raw) -> Any:
        try:
            found = self._object.decode(raw)
        except msgspec.ValidationError:
            # The API server writes null for an empty list of a kind without omitempty, such as a claim's requests.
            found = self._object.decode(msgspec.json.encode(_without_nulls(msgspec.json.decode(raw))))
        return without_settled(found) if isinstance(found, Pod) else found

    def _title(self, raw: msgspec.Raw) -> str:
        try:
            meta = msgspec.json.decode(raw, type=_Titled).metadata
        except UNREADABLE:
            return f"a {self.kind.__name__} without a name"
        return f"{self.kind.__name__} {meta.namespace}/{meta.name}"


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(of) for key, of in value.items() if of is not None}
    return [_without_nulls(of) for of in value] if isinstance(value, list) else value


class _Title(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""


class _Titled(msgspec.Struct, frozen=True):
    metadata: _Title = _Title()


class Lines:
    """Chunks of bytes into lines, as a watch sends its events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are complete now."""
        *lines, self._rest = (self._rest + chunk if self._rest else chunk).split(b"\n")
        return [line for line in lines if line]
