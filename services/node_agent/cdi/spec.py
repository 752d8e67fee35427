"""The types of a CDI spec: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md, as of 0.8.0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

VERSION = "0.5.0"
"""The oldest version that has everything Kerf itself writes, so that older runtimes accept it."""

T = TypeVar("T")


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True):
    """The base of all parts.

    Unknown fields are refused: edits read from another spec are passed on whole or not at all.
    """


class DeviceNode(Part, frozen=True):
    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int = 0
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class Mount(Part, frozen=True):
    host_path: str
    container_path: str
    type: str = ""
    options: tuple[str, ...] = ()


class Hook(Part, frozen=True):
    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class ContainerEdits(Part, frozen=True):
    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = msgspec.field(default=(), name="additionalGids")

    def of_host(self) -> tuple[str, ...]:
        """The paths of the host that must exist when the container starts."""
        return _once(
            [
                *(mount.host_path for mount in self.mounts),
                *(hook.path for hook in self.hooks),
                *(node.host_path or node.path for node in self.device_nodes),
            ]
        )


class Device(Part, frozen=True):
    name: str
    container_edits: ContainerEdits


class Spec(Part, frozen=True):
    cdi_version: str
    kind: str
    devices: tuple[Device, ...]


def document(kind: str, name: str, edits: ContainerEdits) -> bytes:
    version = "0.7.0" if edits.additional_gids else VERSION
    return msgspec.json.encode(
        Spec(cdi_version=version, kind=kind, devices=(Device(name=name, container_edits=edits),))
    )


def merged(*parts: ContainerEdits) -> ContainerEdits:
    """Merges edits: each item once, in order. Of an environment variable the last value counts, as in the runtime."""
    return ContainerEdits(
        env=tuple(
            f"{key}={value}" for key, value in dict(line.split("=", 1) for part in parts for line in part.env).items()
        ),
        device_nodes=_once(node for part in parts for node in part.device_nodes),
        mounts=_once(mount for part in parts for mount in part.mounts),
        hooks=_once(hook for part in parts for hook in part.hooks),
        additional_gids=_once(gid for part in parts for gid in part.additional_gids),
    )


def _once(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))
