"""KAI's GPU groups, reservation pods and whole GPUs."""

from __future__ import annotations

import pytest

from shadow.peers.base import Surroundings, Unreadable
from shadow.peers.kai import Kai, groups_of, is_reservation, reservation
from tests.support import shadow

GROUP = "2f254411-445d-40de-83bf-328add9dbb8e"
AROUND = Surroundings(reserved={GROUP: ("n1", "GPU-a")})


def test_a_fraction_is_on_the_gpu_of_its_groups_reservation() -> None:
    pod = shadow.pod(on="n1", labels={"runai-gpu-group": GROUP}, annotations={"gpu-fraction": "0.5"})
    given = Kai().given(pod, AROUND)
    assert given is not None
    assert [(part.uuid, part.milli, part.memory_milli) for part in given.parts] == [("GPU-a", 500, 500)]


def test_a_memory_request_on_several_gpus_has_a_label_for_each() -> None:
    labels = {f"runai-gpu-group/{GROUP}": GROUP, "runai-gpu-group/other": "other"}
    pod = shadow.pod(on="n1", labels=labels, annotations={"gpu-memory": "2000", "gpu-fraction-num-devices": "2"})
    given = Kai().given(pod, AROUND)
    assert given is not None
    assert sorted((part.uuid, part.memory_mib) for part in given.parts) == [("GPU-a", 2000), ("group:other", 2000)]


def test_whole_gpus_are_counted_for_which_they_are_is_not_said() -> None:
    given = Kai().given(shadow.pod(limits={"nvidia.com/gpu": "2"}, on="n1", scheduler="kai-scheduler"), AROUND)
    assert given is not None
    assert [part.whole for part in given.parts] == [True, True]
    assert not given.known


def test_a_reservation_pod_holds_nothing_itself() -> None:
    pod = shadow.pod(
        "gpu-reservation-1",
        {"nvidia.com/gpu": "1"},
        on="n1",
        namespace="kai-resource-reservation",
        labels={"runai-gpu-group": GROUP},
        annotations={"run.ai/reserve_for_gpu_index": "GPU-a"},
    )
    assert is_reservation(pod)
    assert reservation(pod) == (GROUP, ("n1", "GPU-a"))
    assert Kai().given(pod, AROUND) is None
    assert groups_of(shadow.pod()) == []


@pytest.mark.parametrize(
    ("labels", "annotations", "text"),
    [
        ({"runai-gpu-group": GROUP}, {}, "neither gpu-fraction nor gpu-memory"),
        ({"runai-gpu-group": GROUP}, {"gpu-fraction": "half"}, "'half'"),
        ({"runai-gpu-group": GROUP}, {"gpu-fraction": "1.5"}, "a part of 1"),
        ({"runai-gpu-group": GROUP}, {"gpu-memory": "2Gi"}, "a whole number"),
        ({}, {"received-resource-type": "Fraction"}, "no label runai-gpu-group"),
    ],
)
def test_a_malformed_pod_is_a_named_problem(labels: dict[str, str], annotations: dict[str, str], text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        Kai().given(shadow.pod(on="n1", labels=labels, annotations=annotations), AROUND)


def test_a_group_that_is_reserved_on_another_node_is_a_named_problem() -> None:
    pod = shadow.pod(on="n2", labels={"runai-gpu-group": GROUP}, annotations={"gpu-fraction": "0.5"})
    with pytest.raises(Unreadable, match="on n1"):
        Kai().given(pod, AROUND)
