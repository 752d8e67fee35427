"""What samples of earlier pods say about the next one of the same owner."""

from __future__ import annotations

from typing import Any

import pytest

from shared.book.states import pod_state
from shared.contracts.samples import SliceUse
from shared.model.kube_object import OwnerReference
from shared.model.use import UseProfile
from shared.scheduling.slowdown import learning
from shared.scheduling.slowdown.learning import MIN_SAMPLES, Learner, Owner, owners_of
from shared.scheduling.slowdown.local import Sharer, slowdown_of
from tests.support import build

OWNER: Owner = ("team", "Job", "train", "c")


def use(**seen: Any) -> SliceUse:
    return SliceUse(
        namespace="team", name="p", granted_memory_mib=1024, granted_compute_milli=0,
        **({"uid": "u", "memory_mib": 512} | seen),
    )  # fmt: skip


def feed(learner: Learner, times: int, *, alone: bool, predicted: float = 1.0, way: Any = "turns", **seen: Any) -> None:
    for _ in range(times):
        learner.sampled(OWNER, use(**seen), way, predicted, alone=alone)


def test_an_owner_is_known_after_a_minute_of_samples() -> None:
    learner = Learner()
    feed(learner, MIN_SAMPLES - 1, alone=True, gpu_milli=400, bandwidth_milli=100, launch_us=600)
    assert learner.profile(OWNER) is None
    feed(learner, 1, alone=True, gpu_milli=400, bandwidth_milli=100, launch_us=600)
    found = learner.profile(OWNER)
    assert found is not None
    assert (found.busy_milli, found.bandwidth_milli, found.request_us) == (400, 250, 0)


def test_a_container_that_waits_half_of_the_time_would_be_busy_for_twice_as_much() -> None:
    learner = Learner()
    feed(learner, MIN_SAMPLES, alone=False, gpu_milli=300, waited_milli=500)
    found = learner.profile(OWNER)
    assert found is not None
    assert found.busy_milli == 600


def test_samples_of_a_gpu_of_its_own_replace_those_of_one_that_is_shared_concurrently() -> None:
    learner = Learner()
    feed(learner, 50, alone=False, way="concurrent", sm_milli=200)
    feed(learner, MIN_SAMPLES, alone=True, way="concurrent", sm_milli=800)
    feed(learner, 50, alone=False, way="concurrent", sm_milli=200)
    found = learner.profile(OWNER)
    assert found is not None
    assert found.busy_milli == 800


def test_observed_waits_teach_the_sensitivity_and_the_error_falls() -> None:
    """Predicted 2.0, observed 1.25: a quarter of it."""
    learner = Learner()
    feed(learner, MIN_SAMPLES, alone=False, gpu_milli=800, waited_milli=200, predicted=2.0)
    feed(learner, 1, alone=False, gpu_milli=800, waited_milli=200, predicted=2.0)
    first = learner.errors["turns"].absolute
    feed(learner, 400, alone=False, gpu_milli=800, waited_milli=200, predicted=2.0)
    found = learner.profile(OWNER)
    assert found is not None
    assert found.sensitivity_milli == 250
    assert learner.errors["turns"].absolute < 0.05 < first


def test_fewer_launches_than_alone_are_a_slowdown_that_no_gate_sees() -> None:
    learner = Learner()
    feed(learner, MIN_SAMPLES, alone=True, way="concurrent", sm_milli=900, launches_per_s=1000)
    feed(learner, 100, alone=False, way="concurrent", sm_milli=900, launches_per_s=500, predicted=1.5)
    found = learner.profile(OWNER)
    assert found is not None
    assert found.sensitivity_milli > 1500
    assert learner.errors["concurrent"].count == 100


def test_without_waits_and_launches_nothing_is_said_about_predictions() -> None:
    learner = Learner()
    feed(learner, 100, alone=False, way="concurrent", sm_milli=450, predicted=1.5)
    assert learner.errors == {}


def test_a_request_is_not_a_launch() -> None:
    """0.85 busy with launches of 56 us, beside a neighbour that is always busy: no launch waits for itself."""
    learner = Learner()
    feed(learner, MIN_SAMPLES, alone=True, gpu_milli=850, waited_milli=0, launches_per_s=15_000, launch_us=56)
    found = learner.profile(OWNER)
    assert found is not None
    assert slowdown_of(Sharer(found), [Sharer(UseProfile())], "turns") < 2


def test_a_profile_stays_while_its_figures_only_vary() -> None:
    """At the border between two rounded figures, and with memory and launches that grow."""
    learner, seen = Learner(), set()
    for number in range(720):
        varied = 525 + (-1) ** number * 200
        feed(learner, 1, alone=True, gpu_milli=varied, bandwidth_milli=varied // 2, launch_us=number, memory_mib=number)
        seen.add(learner.profile(OWNER))
    assert len(seen - {None}) == 1
    feed(learner, 400, alone=True, gpu_milli=700)
    found = learner.profile(OWNER)
    assert found is not None
    assert found.busy_milli in (650, 700)


def test_a_lull_is_no_slowdown() -> None:
    learner = Learner()
    feed(learner, 40, alone=True, way="concurrent", sm_milli=900, launches_per_s=1000)
    feed(learner, 10, alone=False, way="concurrent", sm_milli=1, launches_per_s=1, predicted=1.5)
    feed(learner, 10, alone=False, way="turns", gpu_milli=1, waited_milli=0, launches_per_s=1, predicted=1.5)
    found = learner.profile(OWNER)
    assert found is not None
    assert found.sensitivity_milli == 1000
    assert learner.errors == {}


def test_launches_in_a_lull_are_not_those_of_a_container_at_work() -> None:
    learner = Learner()
    for _ in range(40):
        feed(learner, 1, alone=True, way="concurrent", sm_milli=900, launches_per_s=1000)
        feed(learner, 1, alone=True, way="concurrent", sm_milli=1, launches_per_s=1)
    feed(learner, 100, alone=False, way="concurrent", sm_milli=900, launches_per_s=500, predicted=2.0)
    found = learner.profile(OWNER)
    assert found is not None
    assert found.sensitivity_milli == 1000


def test_one_absurd_sample_does_not_make_the_error_meaningless() -> None:
    learner = Learner()
    feed(learner, 40, alone=True, way="concurrent", sm_milli=900, launches_per_s=1_000_000)
    feed(learner, 1, alone=False, way="concurrent", sm_milli=900, launches_per_s=1, predicted=1.5)
    assert learner.errors["concurrent"].absolute <= learning.MAX_OBSERVED


def test_a_namespace_with_many_owners_drives_out_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MAX_OWNERS", 6)
    monkeypatch.setattr(learning, "MAX_OF_NAMESPACE", 3)
    learner = Learner()
    feed(learner, MIN_SAMPLES, alone=True, gpu_milli=400)
    for number in range(10):
        learner.sampled(("many", "Job", f"j{number}", "c"), use(gpu_milli=100), "turns", 1.0, alone=True)
    assert learner.profile(OWNER) is not None
    assert len(learner) == 4


def test_an_owner_with_a_running_pod_makes_no_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MAX_OWNERS", 3)
    ran = {"runs"}
    learner = Learner(runs=ran.__contains__)
    feed(learner, MIN_SAMPLES, alone=True, gpu_milli=400, uid="runs")
    for number in range(5):
        learner.sampled((f"n{number}", "Job", "j", "c"), use(gpu_milli=100, uid="ended"), "turns", 1.0, alone=True)
    assert learner.profile(OWNER) is not None
    for number in range(2):
        learner.sampled((f"m{number}", "Job", "j", "c"), use(gpu_milli=100, uid="runs"), "turns", 1.0, alone=True)
    learner.sampled(("late", "Job", "j", "c"), use(gpu_milli=100, uid="runs"), "turns", 1.0, alone=True)
    assert len(learner) == 3
    assert learner.profile(OWNER) is not None


def test_only_the_owners_seen_last_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MAX_OWNERS", 3)
    learner = Learner()
    for number in range(10):
        for _ in range(MIN_SAMPLES):
            learner.sampled(("team", "Job", f"j{number}", "c"), use(gpu_milli=100), "turns", 1.0, alone=True)
    assert len(learner) == 3
    assert learner.profile(("team", "Job", "j0", "c")) is None
    assert learner.profile(("team", "Job", "j9", "c")) is not None


@pytest.mark.parametrize(
    ("kind", "name", "labels", "owner"),
    [
        ("ReplicaSet", "web-7d9f8b6c5", {"pod-template-hash": "7d9f8b6c5"}, "web"),
        ("ReplicaSet", "web-7d9f8b6c5", {}, "web-7d9f8b6c5"),
        ("Job", "nightly-29384756", {}, "nightly"),
        ("Job", "train-7", {}, "train-7"),
        ("StatefulSet", "db", {}, "db"),
    ],
    ids=["deployment", "replica set", "cron job", "job", "stateful set"],
)
def test_owners(kind: str, name: str, labels: dict[str, str], owner: str) -> None:
    pod = build.gpu_pod("p", gpus=1, labels=labels)
    controlled = build.newer(pod, owner_references=(OwnerReference(kind=kind, name=name, uid="o", controller=True),))
    assert owners_of(pod_state(controlled)) == {"c": ("team", kind, owner, "c")}


def test_a_pod_without_a_controller_has_no_earlier_ones() -> None:
    assert owners_of(pod_state(build.gpu_pod("p", gpus=1))) == {}
