"""Reads the kubelet's device checkpoint (`kubelet_internal_checkpoint`): device ids by container and pod UID.

Its format is internal to the kubelet (pkg/kubelet/cm/devicemanager/checkpoint, "v2", since Kubernetes 1.20; read in
1.36.4), so anything unexpected is refused with an error. The kubelet replaces the file atomically.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from google.protobuf.message import DecodeError

from services.node_agent.handover.slots import CheckpointEntry
from services.node_agent.kubelet_api.device_plugin_pb2 import ContainerAllocateResponse
from shared.formats import UNREADABLE

FILE = "kubelet_internal_checkpoint"


class KubeletCheckpointError(ValueError):
    """The file cannot be read, or is not in a known format, so no container can be identified by it."""


class _Entry(msgspec.Struct, frozen=True):
    PodUID: str
    ContainerName: str
    ResourceName: str
    DeviceIDs: dict[str, tuple[str, ...]]
    """Device ids by NUMA node; "-1" is none."""
    AllocResp: bytes


class _Data(msgspec.Struct, frozen=True):
    PodDeviceEntries: tuple[_Entry, ...] | None


class _File(msgspec.Struct, frozen=True):
    Data: _Data


_DECODER = msgspec.json.Decoder(_File)


def load(directory: Path, resource: str, kind: str) -> tuple[CheckpointEntry, ...]:
    """The containers that hold `resource`, with the CDI devices of `kind` that Allocate answered.

    Empty if the kubelet has not written a checkpoint yet. Raises KubeletCheckpointError.
    """
    path = directory / FILE
    try:
        payload = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise KubeletCheckpointError(f"the kubelet's device checkpoint {path}: {error.strerror}") from error
    return read(payload, resource, kind)


def read(payload: bytes, resource: str, kind: str) -> tuple[CheckpointEntry, ...]:
    """Like `load`, from the file's content."""
    try:
        entries = _DECODER.decode(payload).Data.PodDeviceEntries or ()
        return tuple(_holding(entry, kind) for entry in entries if entry.ResourceName == resource)
    except (*UNREADABLE, DecodeError) as error:
        raise KubeletCheckpointError(
            "the kubelet's device checkpoint is in a format that this version of Kerf does not support "
            f"({error}); upgrade Kerf"
        ) from error


def _holding(entry: _Entry, kind: str) -> CheckpointEntry:
    prefix = f"{kind}="
    answer = ContainerAllocateResponse.FromString(entry.AllocResp)
    # Old kubelets only keep the annotations.
    named = dict.fromkeys((*(device.name for device in answer.cdi_devices), *answer.annotations.values()))
    return CheckpointEntry(
        uid=entry.PodUID,
        container=entry.ContainerName,
        slots=frozenset(slot for ids in entry.DeviceIDs.values() for slot in ids),
        cdi_names=tuple(name.removeprefix(prefix) for name in named if name.startswith(prefix)),
    )
