"""Whatever stands in annotations and labels: a problem with a name, or what was given, and never a crash."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from shadow.peers import PEERS, hami, volcano
from shadow.peers.base import Surroundings, Unreadable
from shadow.report import make
from tests.support import shadow

TEXT = st.text(alphabet='GPU-a0,1:;[]{}"x. %é\x00', max_size=40)
POD_KEYS = (
    hami.ALLOCATED,
    hami.TO_ALLOCATE,
    hami.NODE,
    volcano.ASSIGNED,
    "gpu-fraction",
    "gpu-memory",
    "received-resource-type",
)
NODE_LABELS = ("nvidia.com/gpu.count", "nvidia.com/gpu.memory", "nvidia.com/gpu.replicas")


@settings(max_examples=400, deadline=None)
@given(
    st.dictionaries(st.sampled_from(POD_KEYS), TEXT),
    st.dictionaries(st.sampled_from(("runai-gpu-group", "runai-gpu-group/a")), TEXT),
    st.dictionaries(st.sampled_from((hami.REGISTER, volcano.REGISTER)), TEXT),
    st.dictionaries(st.sampled_from(NODE_LABELS), TEXT),
    TEXT,
)
def test_no_text_crashes_a_reader(
    notes: dict[str, str], groups: dict[str, str], registers: dict[str, str], labels: dict[str, str], amount: str
) -> None:
    node = shadow.node("n1", labels, registers)
    pod = shadow.pod("p", {"nvidia.com/gpu": amount}, on="n1", annotations=notes, labels=groups)
    for peer in PEERS:
        with contextlib.suppress(Unreadable):
            peer.devices(node)
        with contextlib.suppress(Unreadable):
            peer.given(pod, Surroundings(nodes={"n1": node}, reserved={}))


def test_an_odd_node_costs_its_own_gpus_and_not_the_report() -> None:
    twice = shadow.node("n1", annotations={volcano.REGISTER: "GPU-b,10,16384,T4,true:GPU-b,10,16384,T4,true:"})
    report = make(shadow.Recording(twice, shadow.node("n2", shadow.gfd(2))).ended(5)).report
    assert (report.nodes, report.gpus) == (1, 2)
    assert report.unreadable == (
        "the GPUs of node n1 cannot be as it reports them: the inventory names GPU GPU-b twice",
    )


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(POD_KEYS), TEXT), st.dictionaries(st.sampled_from(NODE_LABELS), TEXT), TEXT)
def test_no_text_crashes_a_report(notes: dict[str, str], labels: dict[str, str], amount: str) -> None:
    nodes = (shadow.node("n1", labels), shadow.node("n2", shadow.gfd(2)))
    recording = shadow.Recording(*nodes).seen(
        1, shadow.pod("p", {"nvidia.com/gpu": amount}, on="n1", annotations=notes)
    )
    recording.seen(1, shadow.pod("q", {"nvidia.com/gpu": "1"}, on="n2", annotations=notes, scheduler="kai-scheduler"))
    assert make(recording.ended(5)).report.watched_s == 5
