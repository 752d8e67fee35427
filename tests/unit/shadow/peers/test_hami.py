"""HAMi's nodes and pods."""

from __future__ import annotations

import pytest

from shadow.peers import devices_of
from shadow.peers.base import Surroundings, Unreadable
from shadow.peers.hami import ALLOCATED, NODE, REGISTER, TO_ALLOCATE, Hami
from tests.support import shadow

TEXT = (
    "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true,0,hami-core:"
    "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true,1,hami-core:"
)
"""docs/develop/protocol.md."""


def test_the_nodes_of_hamis_protocol_are_read() -> None:
    found = devices_of(shadow.node(annotations={REGISTER: TEXT}))
    assert [(one.uuid[:12], one.index, one.memory_mib, one.milli, one.max_sharers) for one in found] == [
        ("GPU-00552014", 0, 32768, 1000, 10),
        ("GPU-0fc3eda5", 1, 32768, 1000, 10),
    ]
    assert found[0].model == "Tesla-V100-PCIE-32GB"


def test_seven_fields_and_json_are_read_too() -> None:
    seven = "GPU-a,10,32768,100,NVIDIA-T4,0,true:GPU-b,10,32768,100,NVIDIA-T4,0,false:"
    found = devices_of(shadow.node(annotations={REGISTER: seven}))
    assert [(one.uuid, one.healthy) for one in found] == [("GPU-a", True), ("GPU-b", False)]
    listed = (
        '[{"id":"GPU-a","count":4,"devmem":16384,"devcore":100,"type":"NVIDIA-T4","mode":"hami-core","health":true}]'
    )
    (one,) = devices_of(shadow.node(annotations={REGISTER: listed}))
    assert (one.index, one.memory_mib, one.max_sharers) == (0, 16384, 4)


def test_a_node_that_hami_has_registered_has_the_gpus_of_no_label() -> None:
    assert devices_of(shadow.node("n1", shadow.gfd(2), {REGISTER: "[]"})) == ()


def test_what_was_allocated_counts_before_what_is_to_be() -> None:
    notes = {ALLOCATED: "GPU-a,NVIDIA,8000,10:;", TO_ALLOCATE: ";"}
    given = Hami().given(shadow.pod(on="n1", annotations=notes), Surroundings())
    assert given is not None
    assert (given.node, given.parts[0].memory_mib, given.parts[0].milli, given.known) == ("n1", 8000, 100, True)
    waiting = Hami().given(shadow.pod(annotations={TO_ALLOCATE: "GPU-a,NVIDIA,1,0:;", NODE: "n2"}), Surroundings())
    assert waiting is not None
    assert waiting.node == "n2"


def test_a_pod_without_annotations_is_not_hamis() -> None:
    assert Hami().given(shadow.pod(on="n1"), Surroundings()) is None
    assert Hami().devices(shadow.node()) is None


@pytest.mark.parametrize(
    "text",
    [
        "[{]",
        '[{"index": 1}]',
        '[{"id": "GPU-a", "devmem": -1}]',
        "GPU-a,10,32768:",
        "GPU-a,ten,32768,100,T4,0,true:",
        "GPU-a,10,32768,100,T4,0,true:GPU-a,10,32768,100,T4,0,true:",
    ],
)
def test_a_malformed_node_is_a_named_problem(text: str) -> None:
    with pytest.raises(Unreadable, match="node n1"):
        devices_of(shadow.node(annotations={REGISTER: text}))


def test_a_malformed_pod_is_a_named_problem() -> None:
    with pytest.raises(Unreadable, match="pod team/p"):
        Hami().given(shadow.pod(on="n1", annotations={ALLOCATED: "GPU-a:;"}), Surroundings())
    with pytest.raises(Unreadable, match="no node"):
        Hami().given(shadow.pod(annotations={ALLOCATED: "GPU-a,NVIDIA,1,0:;"}), Surroundings())


@pytest.mark.parametrize("limits", [{"nvidia.com/gpumem": "8000"}, {"nvidia.com/gpu": "1"}])
def test_a_pod_that_was_bound_without_a_record_is_named(limits: dict[str, str]) -> None:
    with pytest.raises(Unreadable, match=r"team/p is bound to node n1 .* recorded nowhere"):
        Hami().given(shadow.pod("p", limits, on="n1", scheduler="hami-scheduler"), Surroundings())
    assert Hami().given(shadow.pod("p", limits, scheduler="hami-scheduler"), Surroundings()) is None
