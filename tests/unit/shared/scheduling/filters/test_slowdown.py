"""Pods that declare what they do on a GPU: none is slower than it accepts, and `why` says what would make it so."""

from __future__ import annotations

import json
import random
import re
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from services.placement import messages as m
from services.placement.service import Placement as PlacementService
from shared.contracts.events import PlacementDecided
from shared.contracts.samples import GpuUse, SliceUse, UsageSample
from shared.model.grant import ContainerGrant, decode_grant
from shared.model.kube_object import OwnerReference
from shared.model.objects import Pod
from shared.model.request import RequestError
from shared.model.request_reader import read_request
from shared.scheduling.slowdown import outlook
from shared.scheduling.slowdown.learning import MIN_SAMPLES
from shared.telemetry.metrics import Metrics
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.whatif import run, why

USE, BOUND = "kerf.dev/gpu-use", "kerf.dev/max-slowdown"
GATE = ("exclusive", "interposer", "time_slice")
MPS = ("exclusive", "mps")
HEAVY = "busy=90%,sm=100%,bandwidth=80%"
LIGHT = "busy=50%,sm=40%,bandwidth=10%"


def pod(name: str, use: str = "", bound: str = "", memory: str = "8Gi", **rest: Any) -> Pod:
    notes = ({USE: use} if use else {}) | ({BOUND: bound} if bound else {})
    return build.gpu_pod(name, memory=memory, annotations=notes | rest.pop("notes", {}), **rest)


def grant_of(placement: Placement, name: str) -> ContainerGrant:
    return decode_grant(placement.binds()[f"uid-team-{name}"].grant).containers["c"]


def gpu_of(placement: Placement, name: str) -> str:
    return grant_of(placement, name).gpus[0].uuid


def test_a_pod_is_kept_off_a_gpu_where_it_would_be_too_slow() -> None:
    placement = Placement().nodes("n", gpus=1, strategies=GATE)
    placed = placement.place(pod("a", HEAVY), pod("b", HEAVY, "1.2"))
    assert placed == {"a": "n"}
    said = why(placement, "b")
    assert said.summary[0].code == "too-slow-beside"
    assert "on GPU 0, beside 1 container(s) by time_slice, it would take 1.87 times as long" in said.summary[0].sentence
    assert [change.sentence for change in said.counterfactuals] == ["fits with kerf.dev/max-slowdown: 1.88"]


def test_the_slowdown_that_is_suggested_suffices() -> None:
    placement = Placement().nodes("n", gpus=1, strategies=GATE)
    placement.place(pod("a", HEAVY), pod("b", HEAVY, "1.2"))
    assert placement.place(pod("c", HEAVY, "1.88")) == {"c": "n"}


def test_a_pod_is_kept_off_a_gpu_where_a_neighbour_would_be_too_slow() -> None:
    placement = Placement().nodes("n", gpus=1, strategies=GATE)
    placed = placement.place(pod("a", LIGHT, "1.1"), pod("b", HEAVY))
    assert placed == {"a": "n"}
    assert "team/a would take 1.49 times as long, it accepts 1.1" in why(placement, "b").summary[0].sentence


def test_pods_that_declare_nothing_are_placed_as_ever() -> None:
    """Nothing is predicted of them, so they are refused for no neighbour's sake."""
    placement = Placement().nodes("n", gpus=1, strategies=GATE)
    assert placement.place(pod("a", LIGHT, "1.1"), pod("plain")) == {"a": "n", "plain": "n"}
    decided = [
        c.event for c in placement.commands if isinstance(c, m.Publish) and isinstance(c.event, PlacementDecided)
    ]
    assert {event.name: bool(event.choice) for event in decided} == {"a": True, "plain": False}


def test_a_neighbour_of_which_nothing_is_known_counts_as_one_that_uses_all_that_it_can() -> None:
    placement = Placement().nodes("n", gpus=1, strategies=GATE)
    assert placement.place(pod("plain"), pod("b", HEAVY, "1.5")) == {"plain": "n"}
    placement = Placement().nodes("n", gpus=1, strategies=GATE)
    assert placement.place(pod("plain", compute=20), pod("b", HEAVY, "1.5")) == {"plain": "n", "b": "n"}


def test_heavy_pods_are_kept_apart_and_light_ones_are_not() -> None:
    placement = Placement().nodes("n", gpus=2, strategies=MPS)
    placement.place(pod("h1", HEAVY), pod("h2", HEAVY))
    assert gpu_of(placement, "h1") != gpu_of(placement, "h2")
    placement = Placement().nodes("n", gpus=2, strategies=MPS)
    placement.place(pod("l1", LIGHT), pod("l2", LIGHT))
    assert gpu_of(placement, "l1") == gpu_of(placement, "l2")


def test_the_strategy_that_slows_down_least_is_chosen_among_nodes() -> None:
    """Both nodes have a pod that leaves half of the SMs: it is noticed where kernels take turns."""
    for names in (("gate", "mps"), ("mps", "gate")):
        placement = Placement()
        for name in names:
            placement.nodes(name, gpus=1, strategies=GATE if name == "gate" else MPS)
        for name in names:
            placement.place(pod(f"on-{name}", LIGHT, node_selector={"kubernetes.io/hostname": name}))
        placement.place(pod("p", LIGHT))
        assert grant_of(placement, "p").strategy == "mps"


def test_the_promise_comes_before_the_slowdown() -> None:
    placement = Placement().nodes("gate", gpus=1, strategies=GATE).nodes("mps", gpus=1, strategies=MPS)
    placement.place(pod("p", LIGHT, notes={"kerf.dev/isolation": "firm"}))
    assert grant_of(placement, "p").strategy == "time_slice"


def test_the_decision_names_strategy_rule_and_runner_up() -> None:
    placement = Placement().nodes("n", gpus=2, strategies=GATE)
    placement.place(pod("a", HEAVY, "1.2"), pod("b", LIGHT, "1.2"))
    (event,) = [
        c.event
        for c in placement.commands
        if isinstance(c, m.Publish) and isinstance(c.event, PlacementDecided) and c.event.name == "b"
    ]
    (choice,) = event.choice
    assert (choice.strategy, choice.promise, choice.slowdown, choice.beside) == ("time_slice", "firm", 1.0, 0)
    assert choice.rule.endswith("of the places with isolation soft and a slowdown of at most 1.2")
    assert choice.second == (
        "next is interposer on GPU 1 of n: 1.00 times as long, 0 thousandths of a container's progress lost, "
        "30030 points in all against 30030"
    )
    assert "c is shared by time_slice (firm), expected 1 times as long" in why(placement, "b").second


def test_of_instances_the_smallest_is_given_on_which_a_pod_is_fast_enough() -> None:
    from msgspec.structs import replace

    made = build.inventory(
        "n", gpus=1, model="NVIDIA-A100-SXM4-40GB", memory_mib=40_960, strategies=("exclusive", "mig")
    )
    cut = replace(made, gpus=tuple(replace(gpu, mig_enabled=True, mig_on_demand=True) for gpu in made.gpus))
    profiles = {}
    for bound in ("", "1.5", "3"):
        placement = Placement(build.node("n"))
        placement.send(m.InventorySeen(cut))
        placement.place(pod("p", "busy=100%,sm=60%,bandwidth=20%", bound, memory="4Gi"))
        share = grant_of(placement, "p").gpus[0]
        assert share.mig is not None
        assert share.requested_mib == 4096
        profiles[bound] = share.mig.profile
    assert profiles == {"": "1g.5gb", "3": "2g.10gb", "1.5": "3g.20gb"}


def test_what_pods_of_an_owner_did_counts_for_its_next_one() -> None:
    """The second one declares only what it accepts. Alone, the first one was busy all the time."""
    owner = OwnerReference(kind="Job", name="train", uid="o", controller=True)
    placement = Placement().nodes("n", gpus=1, strategies=GATE)
    (first,) = run(placement, build.newer(pod("first"), owner_references=(owner,)))
    for _ in range(MIN_SAMPLES):
        placement.send(m.Sampled(sample(first)))
    second = build.newer(pod("second", bound="1.2"), owner_references=(owner,))
    assert placement.place(second) == {}
    assert why(placement, "second").summary[0].code == "too-slow-beside"


def test_nothing_is_learned_of_a_pod_from_another_node_than_its_own() -> None:
    owner = OwnerReference(kind="Job", name="train", uid="o", controller=True)
    placement = Placement().nodes("n", gpus=1, strategies=GATE)
    (first,) = run(placement, build.newer(pod("first"), owner_references=(owner,)))
    placement.nodes("evil", gpus=1, strategies=GATE)
    said = sample(first)
    said = structs.replace(said, node="evil", gpus=(structs.replace(said.gpus[0], uuid="evil-gpu-0"),))
    for _ in range(MIN_SAMPLES):
        placement.send(m.Sampled(said))
    assert placement.core.book.pods[first.metadata.uid].uses == {}


def test_without_the_setting_owners_that_are_known_change_nothing_for_pods_that_declare_nothing() -> None:
    owner = OwnerReference(kind="Job", name="train", uid="o", controller=True)
    for weigh, expected in ((False, {"second": "n"}), (True, {})):
        placement = Placement(weigh_learned=weigh).nodes("n", gpus=1, strategies=GATE)
        first = build.newer(pod("first", bound="1.2"), owner_references=(owner,))
        (first,) = run(placement, first)
        for _ in range(MIN_SAMPLES):
            placement.send(m.Sampled(sample(first)))
        second = build.newer(pod("second"), owner_references=(owner,))
        assert placement.place(second) == expected


def sample(of: Pod, gpu_milli: int = 1000) -> UsageSample:
    use = SliceUse(
        uid=of.metadata.uid, namespace="team", name=of.metadata.name, container="c", memory_mib=8000,
        granted_memory_mib=8192, granted_compute_milli=0, gpu_milli=gpu_milli, waited_milli=0,
    )  # fmt: skip
    return UsageSample(node="n", at_ms=0, gpus=(GpuUse(uuid="n-gpu-0", used_mib=8000, slices=(use,)),))


@pytest.mark.parametrize(
    ("notes", "why_not"),
    [
        ({USE: "busy=60"}, "must be a percentage"),
        ({USE: "busy=160%"}, "must be a percentage"),
        ({USE: "busy=0%"}, "needs none"),
        ({USE: "busy=0.0%"}, "needs none"),
        ({USE: "memory=12Gi"}, "none of busy"),
        ({USE: "heat=60%"}, "none of busy, sm, bandwidth, request"),
        ({USE: "busy=60%,busy=70%"}, "named twice"),
        ({USE: "request=6"}, "must be a time"),
        ({BOUND: "0.9"}, "at least 1"),
        ({BOUND: "fast"}, "at least 1"),
    ],
    ids=json.dumps,
)
def test_what_is_refused(notes: dict[str, str], why_not: str) -> None:
    with pytest.raises(RequestError, match=why_not):
        read_request(pod("p", notes=notes))


def test_what_is_read() -> None:
    request = read_request(pod("p", "busy=62.5%, sm=40%,bandwidth=30%,request=6ms", "1.25"))
    assert request is not None
    assert request.use is not None
    use = request.use
    assert (use.busy_milli, use.sm_milli, use.bandwidth_milli, use.request_us) == (625, 400, 300, 6000)
    assert request.max_slowdown_milli == 1250


def test_a_pod_is_tried_again_when_a_neighbour_turns_out_to_do_little() -> None:
    """Of the first one nothing was known, so it counted as using all of the GPU."""
    owner = OwnerReference(kind="Job", name="train", uid="o", controller=True)
    placement = Placement().nodes("n", gpus=1, strategies=GATE)
    (first,) = run(placement, build.newer(pod("first"), owner_references=(owner,)))
    assert placement.place(pod("b", LIGHT, "1.2")) == {}
    idle = sample(first, gpu_milli=100)
    for _ in range(MIN_SAMPLES):
        placement.send(m.Sampled(idle))
    placement.tick(2.0)
    assert grant_of(placement, "b").strategy == "time_slice"


def test_neighbours_do_not_depend_on_what_a_pod_says_of_itself() -> None:
    """It declares a tenth, and was busy all the time: a pod with a bound is not put beside it."""
    owner = OwnerReference(kind="Job", name="train", uid="o", controller=True)
    placement = Placement().nodes("n", gpus=1, strategies=GATE)
    liar = build.newer(pod("liar", "busy=10%,sm=10%"), owner_references=(owner,))
    (liar,) = run(placement, liar)
    for _ in range(MIN_SAMPLES):
        placement.send(m.Sampled(sample(liar)))
    assert placement.place(pod("victim", LIGHT, "1.2")) == {}
    assert why(placement, "victim").summary[0].code == "too-slow-beside"


def test_a_gpu_with_slices_of_another_way_counts_as_full() -> None:
    """MPS and time slices on one GPU: nobody holds the one back for the other."""
    placement = Placement().nodes("n", gpus=1, strategies=("exclusive", "mps", "time_slice"))
    assert placement.place(pod("firm", "busy=10%,sm=10%", notes={"kerf.dev/isolation": "firm"})) == {"firm": "n"}
    assert grant_of(placement, "firm").strategy == "time_slice"
    placement.place(pod("soft", LIGHT, "1.2"))
    assert grant_of(placement, "soft").strategy == "time_slice"
    near = outlook.neighbours_on(placement.core.book.nodes["n"])["n-gpu-0"]
    assert {one.way for one in near} == {"turns"}
    light, way = near[1].sharer, near[1].way
    assert outlook.slowdown_beside(light, way, [(near[0].sharer, "turns")]) < 1.1
    assert outlook.slowdown_beside(light, way, [(near[0].sharer, "concurrent")]) > 1.5


def test_what_came_next_is_never_better_by_the_rule_that_is_stated() -> None:
    """Across nodes and GPUs, by the totals that are named."""
    drawn, compared, elsewhere = random.Random(5), 0, 0
    for _ in range(12):
        placement = Placement().nodes("m", gpus=2, strategies=MPS).nodes("g", gpus=2, strategies=GATE)
        for number in range(9):
            busy, sm, bandwidth = (drawn.randrange(10, 101, 10) for _ in range(3))
            use = f"busy={busy}%,sm={sm}%,bandwidth={bandwidth}%"
            bound = drawn.choice(["", "1.5", "2", "3"])
            placement.place(pod(f"p{number}", use, bound, memory=drawn.choice(["4Gi", "8Gi", "20Gi", "30Gi"])))
        for command in placement.commands:
            if isinstance(command, m.Publish) and isinstance(command.event, PlacementDecided):
                for choice in command.event.choice:
                    said = re.search(r" of (\S+): .* lost, (-?\d+) points in all against (-?\d+)$", choice.second)
                    if said is not None:
                        compared += 1
                        elsewhere += said[1] != command.event.node
                        assert int(said[2]) <= int(said[3])
    assert compared > elsewhere > 0


def test_a_bound_that_nothing_can_be_predicted_for_is_said_to_be_none() -> None:
    placement = Placement().nodes("n", gpus=1, strategies=GATE)
    placement.place(pod("p", bound="1.2"), pod("known", LIGHT, "1.9"))
    assert "no bound can be kept: nothing is known of its owner's use" in why(placement, "p").second
    assert "no bound" not in why(placement, "known").second


def test_a_container_is_learned_beside_the_others_of_its_pod() -> None:
    """Two containers of one pod on one GPU: each waits for the other, as predicted, and the metric says so by name."""
    owner = OwnerReference(kind="Job", name="train", uid="o", controller=True)
    placement = Placement().nodes("n", gpus=1, strategies=GATE)
    single = pod("p", LIGHT)
    (container,) = single.spec.containers
    both = structs.replace(single.spec, containers=(container, structs.replace(container, name="d")))
    (seen,) = run(placement, build.newer(structs.replace(single, spec=both), owner_references=(owner,)))
    assert len(placement.core.book.nodes["n"].gpus) == 1
    found = sample(seen, gpu_milli=394)
    (gpu,) = found.gpus
    slices = (structs.replace(gpu.slices[0], waited_milli=212),)
    for _ in range(3 * MIN_SAMPLES):
        placement.send(m.Sampled(structs.replace(found, gpus=(structs.replace(gpu, slices=slices),))))
    assert placement.core.profiles.learner.errors["turns"].count > 0
    assert placement.core.profiles.learner.errors["turns"].absolute < 0.05
    service, metrics = PlacementService(), Metrics()
    service._export(SimpleNamespace(metrics=metrics))  # type: ignore[arg-type]
    service._session_now = SimpleNamespace(  # type: ignore[assignment]
        core=placement.core, feed=SimpleNamespace(number=0, gaps=0, snapshots=0), waiting=0
    )
    (line,) = [
        line
        for line in metrics.render().decode().splitlines()
        if line.startswith("kerf_placement_slowdown_error_ratio{")
    ]
    assert 'way="turns"' in line
    assert float(line.split()[-1]) < 0.05
