"""When the container of a lease has ended for good."""

from __future__ import annotations

import pytest

from services.node_agent.handover.slots import CheckpointEntry, PodResourcesEntry
from services.node_agent.release.evidence import Evidence, find_ended
from shared.contracts.node_commands import LiveSlice

LEASE = LiveSlice(
    uid="u-1",
    namespace="team",
    name="web-0",
    container="main",
    grant_id="g-1",
    strategy="advisory",
    gpus={"G0": (100, 0), "G1": (100, 0)},
)


def checkpoint_entry(uid: str, slot: str, container: str = "main") -> CheckpointEntry:
    return CheckpointEntry(uid=uid, container=container, slots=frozenset({slot}), cdi_names=("k1",))


def pod_resources_entry(slot: str, name: str = "web-0", container: str = "main") -> PodResourcesEntry:
    return PodResourcesEntry(namespace="team", name=name, container=container, slots=frozenset({slot}))


def evidence(
    *,
    cgroups: set[str] = frozenset(),
    checkpoint: tuple = (),
    pod_resources: tuple = (),
    on_gpus: set[str] | None = frozenset(),
    closed_gpus: set[str] = frozenset(),
) -> Evidence:  # type: ignore[assignment, type-arg]
    return Evidence(
        cgroups=frozenset(cgroups),
        checkpoint=checkpoint,
        pod_resources=pod_resources,
        on_gpus=None if on_gpus is None else frozenset(on_gpus),
        closed_gpus=frozenset(closed_gpus),
    )


@pytest.mark.parametrize(
    ("what", "case", "is_gone"),
    [
        ("nothing of it is left", evidence(), True),
        ("its pod's cgroup stands, as after a deletion by force", evidence(cgroups={"u-1"}), False),
        ("a process of it is still on a GPU", evidence(on_gpus={"u-1"}), False),
        (
            "the kubelet still names it",
            evidence(checkpoint=(checkpoint_entry("u-1", "s1"),), pod_resources=(pod_resources_entry("s1"),)),
            False,
        ),
        (
            "the checkpoint still has it, but PodResources does not",
            evidence(checkpoint=(checkpoint_entry("u-1", "s1"),)),
            True,
        ),
        (
            "a new pod of the same name has another slot",
            evidence(
                checkpoint=(checkpoint_entry("u-1", "s1"), checkpoint_entry("u-2", "s2")),
                pod_resources=(pod_resources_entry("s2"),),
            ),
            True,
        ),
        (
            "a new pod of the same name has its slot",
            evidence(checkpoint=(checkpoint_entry("u-2", "s1"),), pod_resources=(pod_resources_entry("s1"),)),
            True,
        ),
        (
            "another container of the pod is named",
            evidence(
                checkpoint=(checkpoint_entry("u-1", "s2", "side"),),
                pod_resources=(pod_resources_entry("s2", container="side"),),
            ),
            True,
        ),
        ("another pod runs", evidence(cgroups={"u-2"}, on_gpus={"u-2"}), True),
        ("NVML is silent, and its GPUs are closed", evidence(on_gpus=None, closed_gpus={"G0", "G1", "G2"}), True),
        ("NVML is silent, and one of its GPUs is open", evidence(on_gpus=None, closed_gpus={"G0"}), False),
        (
            "NVML is silent, and the pod's cgroup stands",
            evidence(cgroups={"u-1"}, on_gpus=None, closed_gpus={"G0", "G1"}),
            False,
        ),
        (
            "NVML is silent, and the kubelet still names it",
            evidence(
                checkpoint=(checkpoint_entry("u-1", "s1"),),
                pod_resources=(pod_resources_entry("s1"),),
                on_gpus=None,
                closed_gpus={"G0", "G1"},
            ),
            False,
        ),
        ("its GPUs are closed, and NVML shows a process", evidence(on_gpus={"u-1"}, closed_gpus={"G0", "G1"}), False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_container_has_ended_when_no_record_has_it(what: str, case: Evidence, is_gone: bool) -> None:
    assert (find_ended([LEASE], case) == [LEASE]) is is_gone, what
