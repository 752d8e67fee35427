"""Queues through the real core: which pod is next, which limits hold, and which reasons are reported."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.queries import questions, reader
from shared.contracts.events import PolicyRead
from shared.contracts.explain import PodExplanation
from shared.contracts.log import DecisionBatch, ReadyRecord
from shared.contracts.queries import WhyQuery
from shared.model.objects import Container, Pod, Resources
from tests.support import build
from tests.support.harness.placement import Placement

TWO = "queues: [{name: a, guaranteed: {gpus: 2}}, {name: b, guaranteed: {gpus: 2}}]"


def pod(name: str, queue: str = "", *, minute: int = 0, **rest: Any) -> Pod:
    asks = {} if {"gpus", "memory", "compute"} & rest.keys() else {"gpus": 1}
    return build.gpu_pod(
        name,
        labels={"kerf.dev/queue": queue} if queue else {},
        created=f"2026-11-21T00:{minute:02d}:00Z",
        **asks,
        **rest,
    )


def cluster(text: str, *, gpus: int = 4, **inventory: Any) -> Placement:
    placement = Placement().nodes("n", gpus=gpus, **inventory)
    placement.facts(build.queues(text))
    return placement


def order(placement: Placement) -> list[str]:
    return [d.name for _, record in placement.log if isinstance(record, DecisionBatch) for d in record.decisions]


def end(placement: Placement, seen: Pod) -> None:
    """The pod is deleted, and its node releases its grant."""
    grant = placement.core.book.pods[seen.metadata.uid].grant_id
    placement.gone(seen)
    placement.send(m.ReleaseSeen("n", grant))
    placement.tick()


def why(placement: Placement, name: str, namespace: str = "team") -> PodExplanation:
    answer = finish(
        questions.why(placement.core, WhyQuery(namespace=namespace, name=name), placement.now, placement.now)
    )
    assert answer.explanation is not None
    return answer.explanation


def used(placement: Placement) -> dict[str, int]:
    return {q.name: q.gpu_milli_used for q in reader.queues(placement.core).queues}


# --- order --------------------------------------------------------------------------------------------------------


def test_without_a_policy_the_label_means_nothing_and_priority_and_age_decide() -> None:
    placement = Placement().nodes("n", gpus=2)
    placement.place(pod("young", "a", minute=2), pod("old", "b", minute=1), pod("high", "a", minute=3, priority=5))
    assert order(placement) == ["high", "old"]
    assert reader.queues(placement.core).queues == ()


def test_guarantees_come_before_borrowing_whatever_the_age_and_priority_of_pods() -> None:
    placement = cluster(TWO)
    placement.place(
        *(pod(f"a{i}", "a", minute=i, priority=9) for i in range(4)),
        *(pod(f"b{i}", "b", minute=30 + i) for i in range(2)),
    )
    assert sorted(order(placement)) == ["a0", "a1", "b0", "b1"]


def test_idle_capacity_is_borrowed_and_freed_capacity_goes_to_the_queue_below_its_share() -> None:
    placement = cluster(TWO)
    mine = [pod(f"a{i}", "a", minute=i) for i in range(6)]
    assert len(placement.place(*mine)) == 4
    seen = [placement.bind(p) for p in mine[:4]]
    placement.facts(pod("b0", "b", minute=50))
    end(placement, seen[0])
    assert order(placement)[4:] == ["b0"]
    assert used(placement) == {"a": 3000, "b": 1000}


def test_the_remainder_is_divided_by_weight() -> None:
    placement = cluster("queues: [{name: a, weight: 3}, {name: b}]", gpus=8)
    placement.place(
        *(pod(f"a{i}", "a", minute=i) for i in range(10)), *(pod(f"b{i}", "b", minute=i) for i in range(10))
    )
    assert used(placement) == {"a": 6000, "b": 2000}


def test_a_queue_of_weight_0_gets_only_what_no_other_queue_wants() -> None:
    placement = cluster("queues: [{name: a, weight: 0}, {name: b}]")
    placement.place(*(pod(f"a{i}", "a", minute=i) for i in range(5)), *(pod(f"b{i}", "b", minute=i) for i in range(3)))
    assert used(placement) == {"a": 1000, "b": 3000}


def test_the_higher_priority_of_two_queues_is_served_first() -> None:
    placement = cluster("queues: [{name: a}, {name: b, priority: 1}]", gpus=2)
    placement.place(pod("a0", "a", minute=0), pod("b0", "b", minute=1), pod("b1", "b", minute=2))
    assert order(placement) == ["b0", "b1"]


def test_parents_share_first_and_their_children_share_what_they_get() -> None:
    placement = cluster("queues: [{name: p}, {name: x, parent: p}, {name: y, parent: p}, {name: q}]", gpus=8)
    placement.place(*(pod(f"{q}{i}", q, minute=i) for q in "xyq" for i in range(8)))
    assert used(placement) == {"p": 4000, "x": 2000, "y": 2000, "q": 4000}


def test_a_parent_without_a_guarantee_has_the_sum_of_its_children() -> None:
    placement = cluster("queues: [{name: p}, {name: x, parent: p, guaranteed: {gpus: 3}}, {name: q}]")
    placement.place(*(pod(f"{q}{i}", q, minute=i) for q in "qx" for i in range(4)))
    assert used(placement) == {"p": 3000, "x": 3000, "q": 1000}


def test_a_head_that_does_not_fit_blocks_neither_its_queue_nor_another() -> None:
    placement = cluster(TWO)
    assert placement.place(
        pod("large", "a", gpus=8), pod("small", "a", minute=1), pod("other", "b", minute=2)
    ).keys() == {
        "small",
        "other",
    }


def test_namespaces_without_a_queue_of_their_name_are_queues_with_the_defaults() -> None:
    placement = cluster("queues: []\ndefault: {limit: {gpus: 1}}")
    placement.place(*(pod(f"p{i}", namespace=n) for n in ("one", "two") for i in range(2)))
    assert used(placement) == {"one": 1000, "two": 1000}


def test_a_paused_pod_lets_others_of_its_queue_go_and_is_tried_again_when_its_pause_ends() -> None:
    placement = cluster(TWO)
    placement.core.queue.pause_for("uid-team-first", placement.now, 5.0)
    placement.facts(pod("first", "a"), pod("second", "a", minute=1))
    assert order(placement) == ["second"]
    placement.tick(6.0)
    assert order(placement) == ["second", "first"]


# --- limits -------------------------------------------------------------------------------------------------------


def test_a_limit_is_never_exceeded_and_is_reported() -> None:
    placement = cluster("queues: [{name: a, limit: {gpus: 2}}]")
    placement.place(*(pod(f"a{i}", "a", minute=i) for i in range(3)))
    assert order(placement) == ["a0", "a1"]
    explanation = why(placement, "a2")
    assert explanation.summary[0].code == "queue-limit"
    assert explanation.sentence.startswith("queue a uses 2 GPUs of its limit of 2 GPUs, and the pod asks for 1 GPU")


def test_a_pod_larger_than_the_limit_gets_that_reason() -> None:
    placement = cluster("queues: [{name: a, limit: {gpus: 2}}]")
    placement.place(pod("large", "a", gpus=3))
    assert "the pod alone is more than that" in why(placement, "large").helps[0]


def test_the_limit_of_a_parent_holds_for_all_below_it() -> None:
    placement = cluster("queues: [{name: p, limit: {gpus: 3}}, {name: x, parent: p}, {name: y, parent: p}]")
    placement.place(*(pod(f"{q}{i}", q, minute=i) for q in "xy" for i in range(4)))
    assert used(placement)["p"] == 3000
    assert why(placement, "x3").sentence.startswith("queue p uses 3 GPUs")


def test_pods_of_a_queue_that_gets_children_still_count_against_its_limit() -> None:
    """Their label cannot be changed any more."""
    limited = "{name: vision, guaranteed: {gpus: 2}, limit: {gpus: 3}}"
    placement = cluster(f"queues: [{limited}]", gpus=8)
    for name in ("v0", "v1"):
        placement.facts(pod(name, "vision"))
    placement.facts(build.queues(f"queues: [{limited}, {{name: a, parent: vision}}, {{name: b, parent: vision}}]"))
    placement.facts(*[pod(f"a{number}", "a") for number in range(3)], pod("v2", "vision"))
    placement.tick(1.0)
    assert sorted(placement.binds()) == ["uid-team-a0", "uid-team-v0", "uid-team-v1"]
    tree = placement.core.fair.tree
    assert tree is not None
    assert (tree.queues["vision"].used.gpu_milli, tree.unassigned.used.gpu_milli) == (3_000, 0)


def test_ending_pods_count_until_their_node_has_released_them() -> None:
    placement = cluster("queues: [{name: a, limit: {gpus: 1}}]")
    first = pod("first", "a")
    placement.place(first, pod("second", "a", minute=1))
    seen = placement.bind(first)
    grant = placement.core.book.pods[seen.metadata.uid].grant_id
    placement.gone(seen)
    placement.tick()
    assert order(placement) == ["first"]
    placement.send(m.ReleaseSeen("n", grant))
    assert order(placement) == ["first", "second"]


def test_slices_count_by_their_larger_part_and_fill_a_limit_exactly() -> None:
    placement = cluster("queues: [{name: a, limit: {gpus: 1}}]", memory_mib=80_000)
    placed = placement.place(
        pod("memory", "a", memory="40000Mi", compute=10),
        pod("compute", "a", minute=1, compute=40),
        pod("rest", "a", minute=2, memory="8000Mi"),
        pod("over", "a", minute=3, memory="1Mi"),
    )
    assert placed.keys() == {"memory", "compute", "rest"}
    assert used(placement) == {"a": 1000}


def test_two_containers_on_one_gpu_count_by_the_larger_sum_there() -> None:
    """30 % and 10 % of its memory, and half of its compute."""
    placement = cluster("queues: [{name: a, limit: {gpus: 0.5}}]", gpus=1, memory_mib=80_000)
    asks: tuple[dict[str, str | int], ...] = (
        {"kerf.dev/gpu-memory": "24000Mi"},
        {"kerf.dev/gpu-memory": "8000Mi", "kerf.dev/gpu-compute": "50"},
    )
    containers = tuple(
        Container(name=f"c{i}", resources=Resources(limits={"kerf.dev/slot": "1"} | ask)) for i, ask in enumerate(asks)
    )
    assert placement.place(build.pod("both", labels={"kerf.dev/queue": "a"}, containers=containers)) == {"both": "n"}
    assert used(placement)["a"] == 500


def test_memory_goes_to_the_gpu_on_which_it_is_a_small_enough_part() -> None:
    """20,000 MiB are half of a small GPU and a quarter of a large one; the limit leaves a quarter."""
    placement = Placement().nodes("small", gpus=4, memory_mib=40_000).nodes("large", gpus=4, memory_mib=80_000)
    placement.facts(build.queues("queues: [{name: a, limit: {gpus: 0.25}}]"))
    assert placement.place(pod("p", "a", memory="20000Mi"), pod("q", "a", minute=1, memory="20000Mi")) == {"p": "large"}


def test_a_limit_holds_for_the_gpu_that_was_found() -> None:
    """One node with a large GPU, which is full, and a small one, of which the pod would take too much."""
    seen = build.inventory("n", gpus=2, memory_mib=80_000)
    small = msgspec.structs.replace(seen.gpus[1], memory_mib=40_000)
    placement = Placement(build.node("n"))
    placement.send(m.InventorySeen(msgspec.structs.replace(seen, gpus=(seen.gpus[0], small))))
    placement.facts(build.queues("queues: [{name: a, limit: {gpus: 0.3}}]"))
    assert placement.place(build.gpu_pod("full", memory="70000Mi", namespace="else")) == {"full": "n"}
    assert placement.place(pod("p", "a", memory="20000Mi")) == {}
    assert used(placement)["a"] == 0


def test_the_reason_names_the_limit_if_only_too_small_gpus_are_free() -> None:
    placement = Placement().nodes("small", gpus=4, memory_mib=40_000).nodes("large", gpus=1, memory_mib=80_000)
    placement.facts(build.queues("queues: [{name: a, limit: {gpus: 0.3}}]"))
    placement.place(build.gpu_pod("full", memory="70000Mi", namespace="else"))
    assert placement.place(pod("p", "a", memory="20000Mi")) == {}
    assert why(placement, "p").sentence.startswith(
        "queue a uses 0 GPUs of its limit of 0.3 GPUs, and the pod asks for 0.5 GPUs"
    )


def test_limits_of_cpu_and_memory_block_only_pods_that_request_them() -> None:
    placement = cluster('queues: [{name: a, limit: {cpu: "2"}}]')
    busy = build.gpu_pod("busy", gpus=1, labels={"kerf.dev/queue": "a"})
    plain = [
        build.pod(f"p{i}", labels={"kerf.dev/queue": "a"}, requests={"cpu": "1500m"}, created=f"2026-11-21T00:0{i}:00Z")
        for i in range(2)
    ]
    assert placement.place(*plain, busy).keys() == {"p0", "busy"}
    assert "1.5 CPUs of its limit of 2 CPUs" in why(placement, "p1").sentence


def test_a_gang_stays_within_the_limit_as_a_whole() -> None:
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3"}
    placement = cluster("queues: [{name: a, limit: {gpus: 2}}]")
    placement.place(*(pod(f"g{i}", "a", annotations=notes) for i in range(3)), pod("alone", "a", minute=1))
    assert order(placement) == ["alone"]
    assert why(placement, "g0").summary[0].code == "queue-limit"


def test_a_gang_that_was_tried_says_what_its_queue_would_use() -> None:
    """Its pods were on the book when it was found: nothing of them is used."""
    placement = Placement().nodes("n", gpus=4, memory_mib=40_000).nodes("large", gpus=1, memory_mib=80_000)
    placement.facts(build.queues("queues: [{name: a, limit: {gpus: 0.75}}]"))
    placement.place(build.gpu_pod("full", memory="70000Mi", namespace="else"))
    placement.place(*(pod(f"g{i}", "a", memory="20000Mi", annotations=GANG_OF_TWO) for i in range(2)))
    assert used(placement)["a"] == 0
    assert "queue a would use 1 GPU of its limit of 0.75 GPUs" in why(placement, "g0").sentence


GANG_OF_TWO = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}


def test_members_of_a_gang_in_several_queues_each_count_in_their_own() -> None:
    placement = cluster("queues: [{name: a, limit: {gpus: 1}}, {name: b, limit: {gpus: 1}}]")
    placement.place(*(pod(f"g{name}", name, annotations=GANG_OF_TWO) for name in "ab"))
    assert order(placement) == ["ga", "gb"]


@pytest.mark.parametrize("full", "ab")
def test_a_gang_in_several_queues_waits_while_one_of_them_is_full(full: str) -> None:
    placement = cluster("queues: [{name: a, limit: {gpus: 1}}, {name: b, limit: {gpus: 1}}]")
    placement.place(pod("runs", full))
    placement.place(*(pod(f"g{name}", name, annotations=GANG_OF_TWO) for name in "ab"))
    assert order(placement) == ["runs"]
    assert why(placement, "ga").summary[0].code == "queue-limit"


def test_a_gang_in_several_queues_stays_within_their_parents_limit() -> None:
    placement = cluster("queues: [{name: p, limit: {gpus: 1}}, {name: a, parent: p}, {name: b, parent: p}]")
    placement.place(*(pod(f"g{name}", name, annotations=GANG_OF_TWO) for name in "ab"))
    assert order(placement) == []
    assert used(placement)["p"] == 0
    assert why(placement, "ga").summary[0].code == "queue-limit"


@pytest.mark.parametrize("fixed", [("g0",), ("g1",), ("g0", "g1")])
def test_of_a_gang_only_members_that_are_never_preempted_stay_within_the_guarantee(fixed: tuple[str, ...]) -> None:
    """Whichever is the oldest. The other one borrows."""
    placement = cluster("queues: [{name: a, guaranteed: {gpus: 1}}]")
    never = {"kerf.dev/preemptible": "false"}
    placement.place(
        *(
            pod(name, "a", annotations=GANG_OF_TWO | (never if name in fixed else {}), minute=minute)
            for minute, name in enumerate(("g0", "g1"))
        )
    )
    assert order(placement) == (["g0", "g1"] if len(fixed) == 1 else [])


def test_a_gang_on_gpus_that_are_too_small_for_the_limit_is_undone_completely() -> None:
    """On the large GPU each would be a quarter; one fits there, and half a GPU each is too much."""
    placement = Placement().nodes("small", gpus=4, memory_mib=40_000).nodes("large", gpus=1, memory_mib=80_000)
    placement.facts(build.queues("queues: [{name: a, limit: {gpus: 1}}]"))
    placement.place(build.gpu_pod("full", memory="60000Mi", namespace="else"))
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3"}
    placement.place(*(pod(f"g{i}", "a", memory="20000Mi", annotations=notes) for i in range(3)))
    assert order(placement) == ["full"]
    assert used(placement)["a"] == 0
    assert why(placement, "g0").summary[0].code == "queue-limit"
    tries = len(placement.core.scheduler.decide_us)
    for _ in range(5):
        placement.facts(build.node("small"))
    assert (
        len(placement.core.scheduler.decide_us) == tries
    )  # a try costs as much as all its members: not at each change
    placement.facts(build.queues("queues: [{name: a, limit: {gpus: 2}}]"))
    placement.tick(1.0)
    assert order(placement) == ["full", "g0", "g1", "g2"]


# --- guarantees of non-borrowing use ------------------------------------------------------------------------------


def test_pods_of_a_high_priority_stay_within_the_guarantee_and_opportunistic_ones_borrow() -> None:
    placement = cluster(f"{TWO}\nwithin_guarantee_from: 100")
    firm = [pod(f"f{i}", "a", minute=i, priority=100) for i in range(3)]
    loose = [
        pod("low", "a", minute=10),
        pod("tier", "a", minute=11, priority=100, annotations={"kerf.dev/tier": "opportunistic"}),
    ]
    assert placement.place(*firm, *loose).keys() == {"f0", "f1", "low", "tier"}
    explanation = why(placement, "f2")
    assert explanation.summary[0].code == "queue-guarantee"
    assert "pods of priority 100 may not borrow" in explanation.sentence


# --- which pods may be in which queue -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "namespace", "code"),
    [
        ("none", "team", "queue-unknown"),
        ("p", "team", "queue-unknown"),
        ("x", "team", "queue-not-yours"),
        ("x", "mine", ""),
    ],
)
def test_a_pod_belongs_to_a_leaf_queue_that_allows_its_namespace(queue: str, namespace: str, code: str) -> None:
    placement = cluster("queues: [{name: p}, {name: x, parent: p, namespaces: [mine]}]")
    placement.place(pod("w", queue, namespace=namespace))
    explanation = why(placement, "w", namespace)
    assert (explanation.state, [r.code for r in explanation.summary]) == (
        ("waiting", [code]) if code else ("holding", [])
    )


def test_a_changed_queue_label_moves_no_placed_pod() -> None:
    placement = cluster(TWO)
    first = pod("first", "a")
    placement.place(first)
    seen = placement.bind(first)
    placement.facts(build.newer(seen, labels={"kerf.dev/queue": "b"}))
    assert used(placement) == {"a": 1000, "b": 0}


# --- the policy -----------------------------------------------------------------------------------------------------


def test_an_invalid_queue_file_is_reported_and_leaves_the_last_valid_one_in_force() -> None:
    placement = cluster("queues: [{name: a, limit: {gpus: 1}}]")
    placement.facts(build.queues("queues: [{name: a, limits: {gpus: 3}}]"))
    placement.place(pod("a0", "a"), pod("a1", "a", minute=1))
    assert order(placement) == ["a0"]
    assert [(e.accepted, e.queues) for e in placement.events(PolicyRead)] == [(True, 1), (False, 1)]
    assert "limits" in placement.events(PolicyRead)[1].problem
    assert reader.queues(placement.core).invalid == placement.events(PolicyRead)[1].problem


def test_a_change_applies_to_pending_pods_and_takes_nothing_from_running_pods() -> None:
    placement = cluster("queues: [{name: a, limit: {gpus: 1}}]")
    placement.place(*(pod(f"a{i}", "a", minute=i) for i in range(3)))
    placement.facts(build.queues("queues: [{name: a, limit: {gpus: 2}}]"))
    assert order(placement) == ["a0", "a1"]
    placement.facts(build.queues("queues: [{name: a, limit: {gpus: 0}}]"))
    assert used(placement) == {"a": 2000}
    placement.gone(build.queues(None))
    placement.tick()
    assert order(placement) == ["a0", "a1", "a2"]


def test_a_snapshot_may_have_a_new_policy_and_lack_a_pod_that_waited() -> None:
    placement = cluster("queues: [{name: a, limit: {gpus: 0}}]")
    placement.place(pod("gone", "a"), pod("stays", "a", minute=1))
    placement.send(
        m.SnapshotSeen(build.put(build.node("n"), pod("stays", "a", minute=1), build.queues("queues: [{name: a}]")))
    )
    placement.tick()
    assert order(placement) == ["stays"]


def test_a_leader_that_starts_with_invalid_queues_places_no_pod_until_they_are_corrected() -> None:
    placement = Placement(build.node("n"), build.queues("queues: 7"), records=((99, ReadyRecord(term=99)),))
    placement.send(m.InventorySeen(build.inventory("n")))
    placement.place(pod("p", "a"))
    assert order(placement) == []
    assert why(placement, "p").summary[0].code == "queue-policy"
    placement.facts(build.queues("queues: [{name: a}]"))
    assert order(placement) == ["p"]


def test_a_successor_counts_what_the_book_has_before_it_decides() -> None:
    """Holds, bound pods and slices of pods that have ended, on GPUs whose inventory comes later than the pods."""
    text = "queues: [{name: a, limit: {gpus: 1.5}}]"
    old = cluster(text)
    first, second = pod("first", "a", memory="40960Mi"), pod("second", "a", minute=1)
    old.place(first, second)
    seen = old.bind(first)
    ready = (old.sequence + 1, ReadyRecord(term=100))
    successor = Placement(
        build.node("n"), seen, second, build.queues(text), term=old.sequence + 2, records=(*old.log, ready)
    )
    assert used(successor)["a"] == 2000, "a GPU that is not known counts as a whole"
    successor.send(m.InventorySeen(build.inventory("n", gpus=4)))
    successor.tick()
    assert used(successor) == {"a": 1500}
    successor.place(pod("third", "a", minute=2, compute=1))
    assert why(successor, "third").summary[0].code == "queue-limit"


def test_a_borrowing_pods_reason_names_how_many_queues_go_first() -> None:
    placement = cluster(TWO)
    placement.place(*(pod(f"a{i}", "a", minute=i) for i in range(3)))
    placement.facts(pod("wide", "a", minute=3, gpus=2), pod("owed", "b", minute=4, gpus=2))
    explanation = why(placement, "wide")
    assert explanation.sentence.endswith(
        "; queue a has 3 GPUs and is guaranteed 2 GPUs, 1 queue that waits has less than guaranteed and goes first"
    )
    assert explanation.queue is not None
    assert (explanation.queue.borrows, explanation.queue.owed) == (True, 1)
    assert "goes first" not in why(placement, "owed").sentence


def test_pods_that_are_never_preempted_stay_within_the_guarantee() -> None:
    placement = cluster(TWO)
    never = {"kerf.dev/preemptible": "false"}
    fixed = [pod(f"f{i}", "a", minute=i, annotations=never) for i in range(3)]
    assert placement.place(*fixed, pod("low", "a", minute=10)).keys() == {"f0", "f1", "low"}
    explanation = why(placement, "f2")
    assert explanation.summary[0].code == "queue-guarantee"
    assert "pods marked kerf.dev/preemptible: false may not borrow" in explanation.sentence
    assert "leave kerf.dev/preemptible out" in explanation.summary[0].helps


def test_the_queue_of_a_namespace_is_dropped_with_its_last_pod() -> None:
    """A namespace for each run of a CI left a queue for ever, and each was divided among and listed."""
    placement = cluster("queues: [{name: a}]", gpus=2)
    fair = placement.core.fair
    placement.place(build.gpu_pod("runs", gpus=1, namespace="runs"))
    for number in range(3):
        for name in ("places", "waits"):
            seen = build.gpu_pod(name, gpus=1 if name == "places" else 2, namespace=f"ci-{number}-{name}")
            placement.facts(seen)
            placement.gone(seen)
    placement.facts(build.gpu_pod("waits", gpus=2, namespace="waits"))
    placement.facts(build.node("n", labels={"another": "change"}))
    assert fair.tree is not None
    assert fair.tree.queues.keys() <= {"a", "runs", "waits"}
    assert [child.name for child in fair.tree.root.children] == ["?", *fair.tree.queues]
    standing = {queue.name: (queue.gpu_milli_used, queue.waiting) for queue in reader.queues(placement.core).queues}
    assert standing == {"a": (0, 0), "runs": (1000, 0), "waits": (0, 1)}
    placement.facts(build.gpu_pod("more", gpus=1, namespace="runs"))
    assert fair.tree.queues["runs"].used.gpu_milli == 2000
