"""A CDI spec, as far as Kerf writes one: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

VERSION = "0.5.0"
"""The oldest with all that is written here, for the sake of older runtimes."""


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    pass


class DeviceNode(Part, frozen=True):
    path: str
    host_path: str = ""
    permissions: str = ""


class Mount(Part, frozen=True):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class Hook(Part, frozen=True):
    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


class ContainerEdits(Part, frozen=True):
    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()


class Device(Part, frozen=True):
    name: str
    container_edits: ContainerEdits


class Spec(Part, frozen=True):
    cdi_version: str
    kind: str
    devices: tuple[Device, ...]


def document(kind: str, name: str, edits: ContainerEdits) -> bytes:
    return msgspec.json.encode(Spec(cdi_version=VERSION, kind=kind, devices=(Device(name=name, container_edits=edits),)))


def merged(parts: Iterable[ContainerEdits]) -> ContainerEdits:
    """All edits together, each once, in order."""
    found = tuple(parts)
    return ContainerEdits(
        env=_once(e for part in found for e in part.env),
        device_nodes=_once(d for part in found for d in part.device_nodes),
        mounts=_once(x for part in found for x in part.mounts),
        hooks=_once(h for part in found for h in part.hooks),
    )


def _once(items: Iterable[msgspec.Struct | str]) -> tuple:  # type: ignore[type-arg]
    return tuple(dict.fromkeys(items))
