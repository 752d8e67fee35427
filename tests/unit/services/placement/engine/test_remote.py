"""Which pods get a GPU of another node, and which one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.placement import messages as m
from shared.book.states import pod_state
from shared.model import names
from shared.model.grant import decode_grant
from shared.model.network import UNREACHABLE, NetworkLink, RemoteAbility
from shared.model.objects import Pod, Taint
from shared.scheduling.slowdown.network import remote_slowdown
from tests.support import build
from tests.support.harness.placement import Placement

NEAR = NetworkLink(rtt_us=10, mib_s=20_000)
FAR = NetworkLink(rtt_us=5000, mib_s=1000)
AGREES = {names.ANNOTATION_REMOTE: "allowed"}
SAYS = {names.ANNOTATION_GPU_CALLS: "1000", names.ANNOTATION_GPU_TRANSFER: "100"}


def pod(name: str = "p", *, says: bool = True, notes: dict[str, str] | None = None, **asks: Any) -> Pod:
    annotations = AGREES | (SAYS if says else {}) | (notes or {})
    return build.gpu_pod(name, **(asks or {"memory": "8Gi"}), requests={"cpu": "1"}, annotations=annotations)


def site(
    links: dict[str, NetworkLink] | None = None,
    *,
    gpus: int = 1,
    clients: tuple[str, ...] = ("c",),
    racks: dict[str, str] | None = None,
    rest: tuple[Any, ...] = (),
    **config: Any,
) -> Placement:
    """Serving nodes s and t, and clients without GPUs. `links`: from the clients to each serving node."""
    placement = Placement(**config)
    links = {"s": NEAR, "t": NEAR} if links is None else links
    for name in ("s", "t", *clients):
        labels = {names.LABEL_RACK: racks[name]} if racks else {}
        cpu = "64" if name in clients else "0"  # only for servers
        placement.facts(build.node(name, cpu=cpu, labels=labels))
        ability = RemoteAbility(address=f"{name}:14833") if name not in clients else RemoteAbility(client=True)
        if name in clients:
            ability = msgspec.structs.replace(ability, network=links)
        seen = build.inventory(name, gpus=0 if name in clients else gpus)
        placement.send(m.InventorySeen(msgspec.structs.replace(seen, remote=ability)))
    placement.facts(*rest)
    return placement


def placed(placement: Placement, one: Pod) -> tuple[str, str] | None:
    """(client, serving) of a pod; None where it has no place."""
    placement.facts(one)
    order = placement.binds().get(one.metadata.uid)
    if order is None:
        return None
    (part,) = decode_grant(order.grant).containers.values()
    (share,) = part.gpus
    return order.node, share.node


def reasons(placement: Placement, one: Pod) -> dict[str, str]:
    state = placement.core.book.pods[one.metadata.uid]
    said = placement.core.explainer.why(state, max_nodes=10)
    return {reason.code: reason.sentence for reason in said.summary}


def test_a_pod_that_agrees_gets_a_gpu_of_another_node_where_its_own_have_none() -> None:
    placement = site()
    one = pod(memory="8Gi", compute=30)
    assert placed(placement, one) == ("c", "s")
    (part,) = decode_grant(placement.binds()[one.metadata.uid].grant).containers.values()
    assert (part.strategy, part.serving) == ("remote", "advisory")
    assert (part.gpus[0].memory_mib, part.gpus[0].compute_milli) == (8192, 300)
    book = placement.core.book
    assert (book.nodes["s"].gpus[0].free_mib, book.nodes["c"].cpu_used) == (81920 - 8192, 1000)


def test_a_pod_that_does_not_agree_gets_none() -> None:
    placement = site()
    assert placed(placement, build.gpu_pod("p", memory="8Gi", requests={"cpu": "1"})) is None


def test_a_local_gpu_wins_always() -> None:
    placement = site().nodes("local", gpus=1)
    assert placed(placement, pod("a", gpus=1)) == ("local", "local")
    assert placed(placement, pod("b", gpus=1)) == ("c", "s")


def test_a_whole_gpu_is_served_exclusively() -> None:
    placement = site()
    one = pod(gpus=1)
    assert placed(placement, one) == ("c", "s")
    (part,) = decode_grant(placement.binds()[one.metadata.uid].grant).containers.values()
    assert part.serving == "exclusive"
    assert placed(placement, pod("q", gpus=1)) == ("c", "t")
    assert placed(placement, pod("r", gpus=1)) is None


def test_a_node_that_shares_by_mps_serves_no_part() -> None:
    placement = site()
    for name in ("s", "t"):
        seen = placement.core.book.nodes[name].inventory
        assert seen is not None
        by_mps = msgspec.structs.replace(seen, generation=seen.generation + 1, strategies=("exclusive", "mps"))
        placement.send(m.InventorySeen(by_mps))
    assert placed(placement, pod(notes={names.ANNOTATION_ISOLATION: "soft"})) is None


def test_the_nearest_gpu_is_taken_first() -> None:
    placement = site({"s": NetworkLink(rtt_us=100, mib_s=10_000), "t": NEAR})
    assert placed(placement, pod(gpus=1)) == ("c", "t")
    assert placed(placement, pod("q", gpus=1)) == ("c", "s")


def test_of_equally_near_gpus_the_fullest_is_taken() -> None:
    placement = site()
    placement.facts(
        build.bound(
            build.gpu_pod("x", memory="1Gi"),
            "t",
            decode_grant(
                '{"grant_id":"x","term":1,"containers":{"main":{"strategy":"advisory","gpus":'
                '[{"node":"t","uuid":"t-gpu-0","memory_mib":1024,"compute_milli":500}]}}}'
            ),
        )
    )
    assert placed(placement, pod()) == ("c", "t")


def test_at_5_ms_it_is_refused_and_told_why() -> None:
    placement = site({"s": FAR, "t": FAR})
    one = pod()
    assert placed(placement, one) is None
    said = reasons(placement, one)["remote-too-slow"]
    # 1 + 1000 x 0.005 + 100 / 1000
    assert "6.10 times as long, above its limit of 1.25" in said
    assert "1000 calls/s and 100 MiB/s over a round trip of 5000 us and 1000 MiB/s" in said


@pytest.mark.parametrize(("limit", "fits"), [("6.2", True), ("6", False)])
def test_the_pod_says_how_slow_it_may_become(limit: str, fits: bool) -> None:
    placement = site({"s": FAR, "t": FAR})
    assert (placed(placement, pod(notes={names.ANNOTATION_MAX_SLOWDOWN: limit})) is not None) is fits


def test_else_the_setting_says_it() -> None:
    assert placed(site({"s": FAR, "t": FAR}, max_slowdown=7.0), pod()) is not None


def test_of_a_pod_that_says_nothing_much_is_assumed() -> None:
    fast, usual = NetworkLink(rtt_us=10, mib_s=12_000), NetworkLink(rtt_us=40, mib_s=12_000)
    assert placed(site({"s": fast, "t": fast}), pod(says=False)) is not None
    placement, one = site({"s": usual, "t": usual}), pod(says=False)
    assert placed(placement, one) is None
    assert "(partly assumed)" in reasons(placement, one)["remote-too-slow"]
    assert placed(site({"s": usual, "t": usual}), pod()) is not None


def test_a_network_that_nobody_has_measured_is_not_used() -> None:
    placement, one = site({}), pod()
    assert placed(placement, one) is None
    assert "remote-unmeasured" in reasons(placement, one)


def test_one_measurement_stands_for_a_rack() -> None:
    """Two clients and one serving node in rack a; c was measured with s, d with nobody."""
    racks = {"s": "a", "t": "b", "c": "a", "d": "a"}
    placement = site(
        {}, clients=("c", "d"), racks=racks, rest=(build.node("c", cpu="0", labels={names.LABEL_RACK: "a"}),)
    )
    seen = build.inventory("c", gpus=0, generation=2)
    ability = RemoteAbility(client=True, network={"s": NEAR})
    placement.send(m.InventorySeen(msgspec.structs.replace(seen, remote=ability)))
    assert placed(placement, pod(gpus=1)) == ("d", "s")
    assert placed(placement, pod("q", gpus=1)) is None  # t is in a rack that nothing was measured with


def test_a_node_that_is_not_reached_gets_no_pod_of_that_client_and_its_rack_is_as_before() -> None:
    """The firewall between two nodes is closed: a pod would be refused at its start, again and again."""
    racks = {"s": "a", "t": "a", "c": "a", "d": "a"}
    placement = site({"s": UNREACHABLE, "t": NEAR}, racks=racks)
    assert placed(placement, pod(gpus=1)) == ("c", "t")
    waits = pod("q", gpus=1)
    assert placed(placement, waits) is None
    placement.facts(build.node("d", labels={names.LABEL_RACK: "a"}))
    ability = RemoteAbility(client=True)
    placement.send(m.InventorySeen(msgspec.structs.replace(build.inventory("d", gpus=0), remote=ability)))
    assert placement.binds()[waits.metadata.uid].node == "d"


def test_its_own_node_is_chosen_by_all_that_concerns_no_gpu() -> None:
    tainted = build.node("c", taints=(Taint(key="a", value="b", effect="NoSchedule"),))
    placement = site(clients=("c", "d", "e"), rest=(tainted, build.node("d", cpu="500m")))
    assert placed(placement, pod()) == ("e", "s")


def test_a_node_whose_agent_is_silent_serves_nothing_and_is_no_client() -> None:
    for silent, code in (("c", "remote-none"), ("s", None)):
        placement = site()
        placement.core.book.set_agent_trouble(silent, "silent")
        one = pod()
        if code is None:
            assert placed(placement, one) == ("c", "t")
        else:
            assert placed(placement, one) is None
            assert code in reasons(placement, one)


def test_a_cordoned_node_serves_nothing_new() -> None:
    placement = site(rest=(build.node("s", cpu="0", unschedulable=True),))
    assert placed(placement, pod()) == ("c", "t")


def test_a_node_is_no_client_of_its_own_gpu() -> None:
    """A node that serves and has too little CPU for a local place is never both ends."""
    placement = Placement().nodes("n", gpus=1)
    both = RemoteAbility(address="n:1", client=True, network={})
    seen = build.inventory("n", gpus=1, generation=2)
    placement.send(m.InventorySeen(msgspec.structs.replace(seen, remote=both)))
    placement.facts(build.node("n", cpu="500m"))
    assert placed(placement, pod()) is None


def test_a_waiting_pod_is_tried_again_when_a_served_gpu_becomes_free() -> None:
    placement = site()
    first, second, third = pod("a", gpus=1), pod("b", gpus=1), pod("c", gpus=1)
    for one in (first, second):
        assert placed(placement, one) is not None
    assert placed(placement, third) is None
    seen = placement.bind(first)
    placement.gone(seen)
    grant = decode_grant(placement.binds()[first.metadata.uid].grant)
    (part,) = grant.containers.values()
    placement.send(m.ReleaseSeen(part.gpus[0].node, grant.grant_id, "done"))
    placement.tick(1.0)
    assert third.metadata.uid in placement.binds()


@pytest.mark.parametrize(
    ("one", "code"),
    [
        (pod(gpus=2), "remote-request"),
        (pod(notes={names.ANNOTATION_NIC: "1"}, gpus=1), "remote-request"),
        (pod(notes={names.ANNOTATION_GANG: "g", names.ANNOTATION_GANG_SIZE: "2"}), "remote-gang"),
        (pod(notes={names.ANNOTATION_REMOTE: "yes"}), "bad-annotation"),
        (pod(notes={names.ANNOTATION_GPU_CALLS: "-1"}), "bad-annotation"),
        (pod(notes={names.ANNOTATION_MAX_SLOWDOWN: "0.5"}), "bad-annotation"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(one: Pod, code: str) -> None:
    placement = site()
    assert placed(placement, one) is None
    assert list(reasons(placement, one)) == [code]


def test_why_names_the_node_of_the_gpu() -> None:
    placement, one = site(), pod()
    placement.facts(one)
    placement.bind(one)
    said = placement.core.explainer.why(placement.core.book.pods[one.metadata.uid], max_nodes=10)
    assert said.sentence == "the pod is bound to c with 8 GiB and 0 % of s-gpu-0, a GPU of s, over the network"


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_no_pair_of_nodes_is_nearer_than_the_one_that_is_taken(draw: Any) -> None:
    """The bound by which serving nodes are looked at, against all pairs."""
    placement = Placement()
    names_ = [f"n{i}" for i in range(draw.randint(2, 9))]
    for name in names_:
        rack = {names.LABEL_RACK: f"r{draw.randint(0, 2)}"}
        placement.facts(build.node(name, cpu=draw.choice(("0", "64")), labels=rack))
        links = {
            peer: NetworkLink(rtt_us=draw.randint(1, 200), mib_s=draw.randint(1000, 20_000))
            for peer in names_
            if peer != name and draw.random() < 0.3
        }
        ability = RemoteAbility(address=draw.choice(("", "a:1")), client=draw.random() < 0.7, network=links)
        seen = build.inventory(name, gpus=draw.randint(0, 1))
        placement.send(m.InventorySeen(msgspec.structs.replace(seen, remote=ability)))
    core = placement.core
    state = pod_state(pod(gpus=1))
    places, found = core.remote_places, core.remote_places.decide(state)
    near = {
        remote_slowdown(1000, 100, link)
        for server in places.links.serving
        for client in places.links.clients
        if server != client
        and core.book.nodes[server].gpus
        and core.book.nodes[client].cpu_total
        and (link := places.links.between(client, server)) is not None
    }
    least = min(near, default=9.0)
    if found is None:
        assert least > 1.25
        return
    (share,) = next(iter(found.containers.values())).gpus
    link = places.links.between(found.node, share.node)
    assert link is not None
    assert remote_slowdown(1000, 100, link) == pytest.approx(least)


def test_a_later_neighbour_keeps_to_what_the_network_leaves_of_the_bound() -> None:
    """The network takes 1.41 of 1.5; a pod beside it on the serving node would take 1.33 more."""
    use, bound = names.ANNOTATION_GPU_USE, names.ANNOTATION_MAX_SLOWDOWN
    here = {"kubernetes.io/hostname": "s"}
    notes = {use: "busy=60%,sm=50%", bound: "2"}
    for rtt_us, expected in ((400, False), (10, True)):
        placement = site({"s": NetworkLink(rtt_us=rtt_us, mib_s=10_000)})
        far = pod("far", notes={use: "busy=60%,sm=50%", bound: "1.5"})
        assert placed(placement, far) == ("c", "s")
        placement.facts(build.gpu_pod("near", memory="8Gi", annotations=notes, node_selector=here))
        assert ("uid-team-near" in placement.binds()) is expected
