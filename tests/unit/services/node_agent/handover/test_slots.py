"""The container that holds a slot, by the kubelet's two records."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from services.node_agent.handover import kubelet_checkpoint, slots
from services.node_agent.handover.device_plugin import CDI_ANNOTATION
from services.node_agent.handover.kubelet_checkpoint import KubeletCheckpointError
from services.node_agent.handover.slots import CheckpointEntry, PodResourcesEntry, SlotOwner, Unresolved
from services.node_agent.kubelet_api.device_plugin_pb2 import CDIDevice, ContainerAllocateResponse

KIND = "kerf.dev/slice"
S1 = frozenset({"slot-1"})


def checkpoint_entry(uid: str, container: str = "main", slot: str = "slot-1", name: str = "k1") -> CheckpointEntry:
    return CheckpointEntry(uid=uid, container=container, slots=frozenset({slot}), cdi_names=(name,) if name else ())


def pod_resources_entry(name: str = "web", container: str = "main", slot: str = "slot-1") -> PodResourcesEntry:
    return PodResourcesEntry(namespace="team", name=name, container=container, slots=frozenset({slot}))


def test_a_slot_is_resolved_to_pod_uid_and_container() -> None:
    found = slots.resolve(
        S1,
        (checkpoint_entry("u-1"), checkpoint_entry("u-2", slot="slot-2")),
        (pod_resources_entry(), pod_resources_entry("db", slot="slot-2")),
    )
    assert found == SlotOwner(uid="u-1", namespace="team", name="web", container="main", cdi_names=("k1",))


def test_an_init_container_with_the_same_slot_is_resolved_with_the_app_container() -> None:
    found = slots.resolve(
        S1, (checkpoint_entry("u-1", "load", name="k0"), checkpoint_entry("u-1")), (pod_resources_entry(),)
    )
    assert found == SlotOwner(
        uid="u-1", namespace="team", name="web", container="main", cdi_names=("k1",), init_cdi_names=("k0",)
    )


@pytest.mark.parametrize(
    ("checkpoint", "pod_resources", "code"),
    [
        ((checkpoint_entry("u-1"),), (), "slot-unknown"),
        ((), (pod_resources_entry(),), "slot-not-in-checkpoint"),
        ((checkpoint_entry("u-1", "other"),), (pod_resources_entry(),), "slot-not-in-checkpoint"),
        ((checkpoint_entry("u-1"), checkpoint_entry("u-2")), (pod_resources_entry(),), "slot-ambiguous"),
        ((checkpoint_entry("u-1"),), (pod_resources_entry(), pod_resources_entry("db")), "slot-ambiguous"),
        ((checkpoint_entry("u-1", name=""),), (pod_resources_entry(),), "slot-of-another-plugin"),
    ],
)
def test_nothing_starts_if_the_records_disagree(
    checkpoint: tuple[CheckpointEntry, ...], pod_resources: tuple[PodResourcesEntry, ...], code: str
) -> None:
    found = slots.resolve(S1, checkpoint, pod_resources)
    assert isinstance(found, Unresolved)
    assert found.code == code
    assert "slot-1" in found.sentence


def entry(**changes: object) -> dict[str, object]:
    answer = ContainerAllocateResponse(cdi_devices=[CDIDevice(name=f"{KIND}=k1"), CDIDevice(name="vendor.com/nic=n1")])
    return {
        "PodUID": "u-1", "ContainerName": "main", "ResourceName": "kerf.dev/slot", "DeviceIDs": {"-1": ["slot-1"]},
        "AllocResp": base64.b64encode(answer.SerializeToString()).decode(),
    } | changes  # fmt: skip


def checkpoint(*entries: object) -> bytes:
    return json.dumps(
        {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {"kerf.dev/slot": ["slot-1"]}}, "Checksum": 77}
    ).encode()


def test_the_kubelets_checkpoint_is_read() -> None:
    other = entry(ResourceName="vendor.com/nic", DeviceIDs={"0": ["a"]})
    assert kubelet_checkpoint.read(checkpoint(entry(), other), "kerf.dev/slot", KIND) == (checkpoint_entry("u-1"),)


@pytest.mark.parametrize("devices", [(), (f"{KIND}=k1",)])
def test_the_device_is_read_from_the_annotation_if_the_kubelet_dropped_it(devices: tuple[str, ...]) -> None:
    notes = {CDI_ANNOTATION: f"{KIND}=k1", "vendor.com/note": "x"}
    answer = ContainerAllocateResponse(cdi_devices=[CDIDevice(name=name) for name in devices], annotations=notes)
    made = entry(AllocResp=base64.b64encode(answer.SerializeToString()).decode())
    assert kubelet_checkpoint.read(checkpoint(made), "kerf.dev/slot", KIND) == (checkpoint_entry("u-1"),)


def test_a_checkpoint_of_a_node_without_pods_is_empty() -> None:
    assert (
        kubelet_checkpoint.read(
            b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}', "kerf.dev/slot", KIND
        )
        == ()
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        checkpoint(entry(DeviceIDs=["slot-1"])),
        checkpoint(entry(PodUID=7)),
        checkpoint(entry(AllocResp="AQ==")),
        checkpoint(entry(AllocResp="?")),
        b'{"x":' + b"[" * 100_000,
    ],
    ids=[
        "empty",
        "cut",
        "a list",
        "no data",
        "the form before Kubernetes 1.20",
        "another type",
        "no protobuf",
        "no base64",
        "nested",
    ],
)
def test_a_checkpoint_in_an_unknown_format_is_refused(payload: bytes) -> None:
    with pytest.raises(KubeletCheckpointError, match="a format that this version of Kerf does not support"):
        kubelet_checkpoint.read(payload, "kerf.dev/slot", KIND)


def test_a_missing_checkpoint_is_empty(tmp_path: Path) -> None:
    assert kubelet_checkpoint.load(tmp_path, "kerf.dev/slot", KIND) == ()
    (tmp_path / kubelet_checkpoint.FILE).mkdir()
    with pytest.raises(KubeletCheckpointError, match="kubelet_internal_checkpoint"):
        kubelet_checkpoint.load(tmp_path, "kerf.dev/slot", KIND)
