"""Volcano's vGPU nodes and pods."""

from __future__ import annotations

import pytest

from shadow.peers import devices_of
from shadow.peers.base import Surroundings, Unreadable
from shadow.peers.volcano import ASSIGNED, REGISTER, Volcano
from tests.support import shadow

TEXT = (
    "GPU-151ae9c0-83a9-2dd1-8981-b5f44c021a58,1,1126,NVIDIA-NVIDIA GeForce GTX 1080 Ti,true:"
    "GPU-76f93f2b-8cd8-4dd0-e555-56418bde1457,10,1126,NVIDIA-NVIDIA GeForce GTX 1080 Ti,true,hami-core:"
)
"""As in the comments of Volcano's utils.go, and with the mode that newer device plugins add."""


def test_a_node_is_read_with_and_without_modes() -> None:
    found = devices_of(shadow.node(annotations={REGISTER: TEXT}))
    assert [(one.uuid[:12], one.index, one.memory_mib, one.max_sharers) for one in found] == [
        ("GPU-151ae9c0", 0, 1126, 1),
        ("GPU-76f93f2b", 1, 1126, 10),
    ]


def test_an_unhealthy_gpu_is_told_apart() -> None:
    found = devices_of(shadow.node(annotations={REGISTER: "GPU-a,10,1126,T4,true:GPU-b,10,1126,T4,false:"}))
    assert [one.healthy for one in found] == [True, False]


def test_a_pod_is_read_and_has_no_last_semicolon() -> None:
    notes = {ASSIGNED: "GPU-a,NVIDIA,1126,20:;GPU-b,NVIDIA,500,0:"}
    given = Volcano().given(shadow.pod(on="n1", annotations=notes), Surroundings())
    assert given is not None
    assert [(part.uuid, part.memory_mib, part.milli) for part in given.parts] == [
        ("GPU-a", 1126, 200),
        ("GPU-b", 500, 0),
    ]
    assert Volcano().given(shadow.pod(on="n1"), Surroundings()) is None


def test_malformed_annotations_are_named_problems() -> None:
    with pytest.raises(Unreadable, match=f"{REGISTER} of node n1"):
        Volcano().devices(shadow.node(annotations={REGISTER: "GPU-a,1,2:"}))
    with pytest.raises(Unreadable, match=f"{ASSIGNED} of pod team/p"):
        Volcano().given(shadow.pod(on="n1", annotations={ASSIGNED: "GPU-a,NVIDIA"}), Surroundings())
    with pytest.raises(Unreadable, match="no node"):
        Volcano().given(shadow.pod(annotations={ASSIGNED: "GPU-a,NVIDIA,1,1:"}), Surroundings())


def test_a_pod_that_was_bound_without_a_record_is_named() -> None:
    """Volcano does so after its scheduler has started."""
    pod = shadow.pod("p", {"volcano.sh/vgpu-number": "1"}, on="n1", scheduler="volcano")
    with pytest.raises(Unreadable, match=r"team/p is bound to node n1 .* recorded nowhere"):
        Volcano().given(pod, Surroundings())
