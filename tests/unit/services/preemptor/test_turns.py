"""Which turns the preemptor proposes: when copies are worth it, and for whom when many wait."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from services.preemptor import messages as m
from shared.book.states import PodState
from shared.contracts.facts import Put
from shared.contracts.preemption import Reserved
from shared.model import names
from shared.model.suspension import Suspension, encode_suspension
from shared.queues.turns import TurnPolicy
from shared.turns.gpu_time import GpuTime, encode_gpu_time
from shared.turns.rules import Job
from tests.support import build
from tests.support.harness.preemptor import TOTAL_MIB, Preemptor

ALLOWED = {names.ANNOTATION_TURNS: "allowed"}
PARKED = Suspension(action="checkpoint", plan_id="earlier")
HOUR = 3_600


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def annotate(preemptor: Preemptor, name: str, notes: dict[str, str]) -> None:
    seen = preemptor.pods[name]
    pod = preemptor.pods[name] = build.newer(seen, annotations=seen.metadata.annotations | notes)
    preemptor.send(m.FactsSeen((Put(object=pod),)))


def run(
    preemptor: Preemptor, name: str, *gpus: int, node: str = "n", for_s: float = HOUR, had_gpu_s: float = 0
) -> None:
    """Adds a job that runs since `for_s`, and had no GPU time before."""
    preemptor.run(name, node, *gpus, strategy="interposer", ran_s=round(for_s), annotations=ALLOWED)
    record = GpuTime(since=preemptor.now - for_s)
    annotate(preemptor, name, {names.ANNOTATION_GPU_TIME: encode_gpu_time(record)})


def suspended(
    preemptor: Preemptor, name: str, *gpus: int, node: str = "n", for_s: float = 600, had_gpu_s: float = 0
) -> None:
    """Adds a job whose memory has been on the host since `for_s`."""
    preemptor.run(name, node, *gpus, strategy="interposer", ran_s=10 * HOUR, annotations=ALLOWED)
    record = GpuTime(since=preemptor.now - for_s, attained_gpu_ms=round(had_gpu_s * 1000), turns=1)
    annotate(
        preemptor,
        name,
        {names.ANNOTATION_GPU_TIME: encode_gpu_time(record), names.ANNOTATION_SUSPENDED: encode_suspension(PARKED)},
    )


def gains(preemptor: Preemptor, seconds: float = 2) -> list[list[str]]:
    """Returns for whom turns end within this time."""
    found = [preemptor.plans(after_s=1) for _ in range(round(seconds))]
    return [[b.name for b in plan.beneficiaries] for plans in found for plan in plans if plan.turn]


@pytest.mark.parametrize("ran_s", [130, 300])
def test_an_overdue_job_gets_its_turn_when_the_one_that_it_ends_was_worth_the_copies(ran_s: float) -> None:
    """Two whole GPUs' memory takes 70 s to the host and back, which is more than half of the shortest turn. An overdue
    job that waited for a turn worth it would wait for ever."""
    preemptor = Preemptor("n", gpus=1)
    suspended(preemptor, "overdue", 0, for_s=30 * HOUR, had_gpu_s=HOUR)
    run(preemptor, "runs", 0, for_s=ran_s)
    found = gains(preemptor)
    assert found == ([["overdue"]] if ran_s == 300 else [])
    assert found or gains(preemptor, 60) == [["overdue"]]


def test_no_job_ends_the_turn_for_which_an_overdue_one_waits() -> None:
    """A new job copies half as much, so that shorter turns are worth it. It would take each turn before the overdue one
    could, and so would the next."""
    preemptor = Preemptor("n", gpus=1)
    suspended(preemptor, "overdue", 0, for_s=30 * HOUR, had_gpu_s=HOUR)
    run(preemptor, "runs", 0, for_s=100)
    preemptor.wait("new", priority=0, annotations=ALLOWED, created=stamp(preemptor.now - 26 * HOUR))
    assert gains(preemptor, 20) == []
    assert gains(preemptor, 60) == [["overdue"]]


@pytest.mark.parametrize(("gpus", "had_gpu_s"), [(1, 599), (8, 0)])
def test_a_job_that_falls_in_the_shortest_turn_goes_on_after_it(gpus: int, had_gpu_s: float) -> None:
    preemptor = Preemptor("n", gpus=gpus, park_mib=64 * TOTAL_MIB)
    every = tuple(range(gpus))
    suspended(preemptor, "low", *every, had_gpu_s=had_gpu_s)
    run(preemptor, "runs", *every)
    assert gains(preemptor) == [["low"]]


def test_many_suspended_jobs_whose_gpus_are_not_yielded_keep_no_other_from_its_turn() -> None:
    preemptor = Preemptor("full", "n", gpus=1, park_mib=100 * TOTAL_MIB)
    run(preemptor, "new", 0, node="full", for_s=10)
    for number in range(70):
        suspended(preemptor, f"waits-{number}", 0, node="full", for_s=HOUR)
    run(preemptor, "long", 0)
    slice_ = {"gpus": 0, "memory": f"{TOTAL_MIB}Mi", "compute": 100}
    preemptor.wait("later", priority=0, annotations=ALLOWED, created=stamp(preemptor.now - 60), **slice_)
    assert gains(preemptor, 3) == [["later"]]


@pytest.mark.parametrize("jobs", [31, 32, 40, 100])
def test_many_suspended_jobs_on_a_host_without_room_keep_no_other_from_its_turn(jobs: int) -> None:
    """A job that could yield runs on their GPU, and cannot go to its host."""
    preemptor = Preemptor("full", "n", gpus=1, park_mib=jobs * TOTAL_MIB)
    run(preemptor, "runs", 0, node="full")
    for number in range(jobs):
        suspended(preemptor, f"waits-{number}", 0, node="full", for_s=2 * HOUR)
    run(preemptor, "long", 0)
    slice_ = {"gpus": 0, "memory": f"{TOTAL_MIB}Mi", "compute": 100}
    preemptor.wait("later", priority=0, annotations=ALLOWED, created=stamp(preemptor.now - 60), **slice_)
    assert gains(preemptor, 60)[:1] == [["later"]]


def test_a_host_that_a_plan_overfills_keeps_no_turn_from_other_nodes() -> None:
    """The setting of its agent has changed since the plan was proposed."""
    preemptor = Preemptor("x", "n", gpus=1, park_mib=2 * TOTAL_MIB)
    run(preemptor, "on-x", 0, node="x")
    run(preemptor, "on-n", 0, node="n", for_s=550)
    preemptor.wait("first", priority=0, annotations=ALLOWED, created=stamp(preemptor.now - 60))
    (plan,) = [plan for _ in range(5) for plan in preemptor.plans(after_s=1)]
    assert [victim.name for victim in plan.victims] == ["on-x"]
    preemptor.reserve(plan)
    preemptor.send(m.InventorySeen(build.inventory("x", gpus=1, park_mib=0, generation=9)))
    preemptor.wait("second", priority=0, annotations=ALLOWED, created=stamp(preemptor.now - 60))
    assert gains(preemptor, 60)[:1] == [["second"]]


GANG = {names.ANNOTATION_GANG: "g", names.ANNOTATION_GANG_SIZE: "2"}


def suspended_gang(*nodes: str) -> Preemptor:
    """Gang a, b is suspended on these nodes, and r0 and r1 run in its place."""
    preemptor = Preemptor(*dict.fromkeys(nodes), gpus=2, park_mib=100 * TOTAL_MIB)
    for index, (name, node) in enumerate(zip("ab", nodes, strict=True)):
        gpu = index if len(set(nodes)) == 1 else 0
        preemptor.run(name, node, gpu, strategy="interposer", ran_s=100 * HOUR, annotations=ALLOWED | GANG)
        record = encode_gpu_time(GpuTime(since=preemptor.now - 600, attained_gpu_ms=300_000, turns=1))
        parked = encode_suspension(PARKED)
        annotate(preemptor, name, {names.ANNOTATION_GPU_TIME: record, names.ANNOTATION_SUSPENDED: parked})
        run(preemptor, f"r{index}", gpu, node=node, for_s=10 * HOUR)
    return preemptor


@pytest.mark.parametrize("gpus", [1, 8])
def test_a_suspended_gang_gets_its_turn_although_another_member_is_pending(gpus: int) -> None:
    """Such as one more of an elastic job, or the replacement of one that failed; with eight GPUs it fits nowhere. It
    gets none for itself: it would run, and the others would not."""
    preemptor = suspended_gang("n", "n")
    created = stamp(preemptor.now - 300)
    preemptor.wait("c", priority=0, annotations=ALLOWED | GANG, created=created, gpus=gpus)
    assert gains(preemptor, 30)[:1] == [["a", "b"]]


@pytest.mark.parametrize(("leaves", "stays"), ["ab", "ba"])
def test_a_member_that_is_being_deleted_hides_no_other(leaves: str, stays: str) -> None:
    """Its node is dead, so it stays for ever."""
    preemptor = suspended_gang(*("dead" if name == leaves else "n" for name in "ab"))
    pod = build.newer(preemptor.pods[leaves], deletion_timestamp=stamp(preemptor.now))
    preemptor.send(m.FactsSeen((Put(object=pod),)))
    assert gains(preemptor, 30)[:1] == [[stays]]


def test_a_turn_ends_for_a_pod_that_asks_for_a_whole_gpu() -> None:
    preemptor = Preemptor("n", gpus=1)
    run(preemptor, "long", 0)
    preemptor.wait("later", priority=0, annotations=ALLOWED, created=stamp(preemptor.now - 60))
    assert gains(preemptor, 3) == [["later"]]


@pytest.mark.parametrize("how", ["refused", "cancelled"])
def test_a_pod_that_cannot_be_suspended_is_left_alone_for_ten_minutes(how: str) -> None:
    preemptor = Preemptor("n", gpus=1)
    run(preemptor, "long", 0)
    preemptor.wait("later", priority=0, annotations=ALLOWED, created=stamp(preemptor.now - 60))
    (plan,) = preemptor.plans(after_s=1)
    if how == "refused":
        cannot = ("uid-team-long",)
        preemptor.send(m.Answered(Reserved(plan_id=plan.plan_id, ok=False, reason="no", cannot_suspend=cannot)))
    else:
        preemptor.reserve(plan)
        preemptor.send(m.Ended(plan.plan_id, executed=False, failed=("uid-team-long",)))
    assert gains(preemptor, 590) == []
    assert gains(preemptor, 60) == [["later"]]


def test_a_gang_is_looked_at_once_and_not_once_for_each_of_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    preemptor = Preemptor("n", gpus=8)
    run(preemptor, "long", 0)
    notes = ALLOWED | {names.ANNOTATION_GANG: "g", names.ANNOTATION_GANG_SIZE: "50"}
    for number in range(50):
        preemptor.wait(f"m{number}", priority=0, annotations=notes)
    weighed: list[str] = []
    job = TurnPolicy.job

    def counted(policy: TurnPolicy, state: PodState, now: float) -> Job:
        weighed.append(state.uid)
        return job(policy, state, now)

    monkeypatch.setattr(TurnPolicy, "job", counted)
    preemptor.plans()
    assert 0 < len(weighed) < 10
