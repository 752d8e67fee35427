"""Turns in bench.jobs: the clock's suspensions and copies, and the orders with which Kerf is compared, against numbers
worked out by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.jobs.__main__ import main
from bench.jobs.costs import Costs, host_mib_per_gpu
from bench.jobs.figures import Figures, figures
from bench.jobs.in_turns import InTurns
from bench.jobs.kerf_turns import KerfTurns
from bench.jobs.native import Native
from bench.jobs.orders import Attained, Order, ShortestFirst, ShortestLeft
from bench.jobs.replay import Copied, End, Evict, Impossible, Replay, Resume, Scheduler, Share, Start, Suspend
from bench.jobs.replay import Order as Move
from bench.jobs.trace import Job, at_load, read_jobs
from bench.openb.__main__ import DATA
from bench.openb.trace import GPU_MIB
from shared.contracts.node_commands import NodeGrant
from shared.model.suspension import Suspension
from shared.turns.rules import TurnRules

WHOLE = Share(0, 1000, GPU_MIB)
COSTS = Costs(copied_mib_per_s=GPU_MIB, fixed_s=1.0, host_mib=GPU_MIB)
"""A whole GPU takes two seconds in each direction, and the host has room for one."""
RULES = TurnRules(level_bounds_gpu_s=(10, 100), min_turn_s=5, max_wait_s=1000)


def job(name: str, created_s: int, run_s: int, milli: int = 1000, gpus: int = 1, host_mib: int = 0) -> Job:
    return Job(name, created_s, run_s, gpus, milli, "LS", host_mib)


class Script(Scheduler):
    """Does what it is told at given times."""

    def __init__(self, moves: dict[float, list[Move]]) -> None:
        self._moves, self.outcomes = moves, list[Copied]()

    def copied(self, copied: list[Copied]) -> None:
        self.outcomes += copied

    def step(self, now_s: float, ended: list[int], arrived: list[int]) -> list[Move]:
        del ended, arrived
        return self._moves.pop(now_s, [])

    def wakes_s(self, now_s: float) -> float:
        return min((at for at in self._moves if at > now_s), default=float("inf"))


def test_a_suspended_job_goes_on_where_it_was_and_its_gpu_is_idle_while_it_is_copied() -> None:
    """a runs from 0 to 4 and is copied until 6; b has the GPU from 6 to 9; a is copied until 11 and runs until 17."""
    jobs = (job("a", 0, 10), job("b", 3, 3))
    script = Script(
        {0: [Start(0, (WHOLE,))], 4: [Suspend(0, "host")], 6: [Start(1, (WHOLE,))], 9: [Resume(0, (WHOLE,))]}
    )
    replay = Replay(jobs, 1, 0.1, COSTS)
    told = replay.run(script)
    assert [one.end_s for one in told] == [17, 9]
    assert script.outcomes == [Copied(0, "parked"), Copied(0, "back")]
    found = figures(jobs, told, 1, replay.host_mib_peak)
    assert (found.turns, found.host_memory_mib_peak, found.longest_wait_s) == (1, GPU_MIB, 3)
    assert found.gpu_hours_lost_in_copies == round(4 / 3600, 1)
    assert told[0].copied_milli_s == 4000


def test_a_job_that_keeps_its_memory_on_the_gpu_gives_up_compute_at_once() -> None:
    half = Share(0, 1000, GPU_MIB // 2)
    jobs = (job("a", 0, 10), job("b", 3, 3))
    script = Script({0: [Start(0, (half,))], 4: [Suspend(0, "gpu"), Start(1, (half,))], 7: [Resume(0, (half,))]})
    told = Replay(jobs, 1, 0.1, Costs()).run(script)
    assert [one.end_s for one in told] == [13, 7]
    assert told[0].copied_milli_s == 0


def test_a_suspension_that_fails_stops_the_job_for_its_fixed_time_alone() -> None:
    costs = Costs(copied_mib_per_s=GPU_MIB, fixed_s=1.0, host_mib=GPU_MIB, failure=1.0)
    script = Script({0: [Start(0, (WHOLE,))], 4: [Suspend(0, "host")]})
    told = Replay((job("a", 0, 10),), 1, 0.1, costs).run(script)
    assert (told[0].end_s, told[0].turns, script.outcomes) == (11, 0, [Copied(0, "failed")])


@pytest.mark.parametrize(
    ("moves", "sentence"),
    [
        ({4: [Suspend(0, "host")], 5: [Start(1, (WHOLE,))]}, "given away twice"),
        ({4: [Suspend(0, "host")], 5: [Suspend(0, "host")]}, "a was suspended and does not run"),
        ({4: [Suspend(0, "gpu"), Start(1, (WHOLE,))]}, "given away twice: 0 thousandths and -16000 MiB"),
        ({4: [Resume(0, (WHOLE,))]}, "a was resumed and is not suspended"),
        ({4: [Suspend(0, "host")], 7: [Start(0, (WHOLE,))]}, "a was started and is suspended"),
        (
            {4: [Suspend(0, "host")], 7: [Start(1, (WHOLE,))], 8: [Suspend(1, "host")]},
            "b was suspended to the host, which has 16000 of 32000 MiB",
        ),
        ({4: [Suspend(0, "gpu"), Resume(0, (Share(0, 999, GPU_MIB),))]}, "resumed elsewhere"),
        ({4: [Suspend(0, "host")]}, "2 jobs were never done"),
    ],
)
def test_a_scheduler_that_suspends_or_resumes_what_it_cannot_is_detected(
    moves: dict[float, list[Move]], sentence: str
) -> None:
    jobs = (job("a", 0, 10), job("b", 3, 3))
    begins: dict[float, list[Move]] = {0.0: [Start(0, (WHOLE,))]}
    with pytest.raises(Impossible, match=sentence):
        Replay(jobs, 1, 0.1, COSTS).run(Script(begins | moves))


def in_turns(jobs: tuple[Job, ...], gpus: int, order: Order, costs: Costs) -> tuple[Figures, Replay]:
    replay = Replay(jobs, gpus, 0.0, costs)
    found = figures(jobs, replay.run(InTurns(jobs, gpus, order, costs)), gpus, replay.host_mib_peak)
    return found, replay


def test_the_job_with_the_least_gpu_time_takes_the_turn_of_one_that_has_had_more() -> None:
    """a is at level 1 from 10 on. b comes at 20, is on the GPU from 22 to 25, and a again from 27 on."""
    jobs = (job("a", 0, 100), job("b", 20, 3))
    found, replay = in_turns(jobs, 1, Attained(RULES), COSTS)
    assert [one.end_s for one in replay.told] == [27 + 80, 25]
    assert found.turns == 1


def test_a_job_whose_memory_has_no_room_on_the_host_is_not_suspended() -> None:
    jobs = (job("a", 0, 100), job("b", 20, 3))
    found, _ = in_turns(jobs, 1, Attained(RULES), Costs(host_mib=GPU_MIB - 1))
    assert (found.turns, found.makespan_s) == (0, 103)


def test_shortest_first_waits_for_the_running_job_and_shortest_left_does_not() -> None:
    jobs = (job("a", 0, 100), job("b", 20, 30), job("c", 21, 3))
    first, _ = in_turns(jobs, 1, ShortestFirst(), COSTS)
    left, replay = in_turns(jobs, 1, ShortestLeft(5), COSTS)
    assert (first.turns, first.makespan_s, first.mean_completion_s) == (0, 133, round((100 + 113 + 82) / 3, 1))
    # b takes a's turn at 20 and begins at 22; c has to wait for it, as the host is full; a is back at 57
    assert [one.end_s for one in replay.told] == [57 + 80, 52, 55]
    assert left.turns == 1


def test_a_job_that_waits_too_long_takes_a_turn_at_its_level() -> None:
    """Both are soon at the last level. Without the bound the second would wait for the end of the first."""
    costs = Costs(copied_mib_per_s=GPU_MIB, fixed_s=1.0, host_mib=2 * GPU_MIB)
    rules = TurnRules(level_bounds_gpu_s=(1,), min_turn_s=5, max_wait_s=50)
    jobs = (job("a", 0, 500), job("b", 0, 500))
    bounded, replay = in_turns(jobs, 1, Attained(rules), costs)
    assert bounded.longest_wait_s <= 50 + 5 + 2
    assert min(one.end_s for one in replay.told) > 900
    patient = TurnRules(level_bounds_gpu_s=(1,), min_turn_s=5, max_wait_s=5000)
    assert in_turns(jobs, 1, Attained(patient), costs)[0].longest_wait_s > 400


@st.composite
def some_jobs(draw: st.DrawFn) -> tuple[Job, ...]:
    shapes = st.one_of(st.tuples(st.just(1), st.sampled_from([250, 460, 1000])), st.just((2, 1000)))
    drawn = draw(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 300), shapes), min_size=1, max_size=10))
    made = [Job(f"j{i:02d}", at, run, gpus, milli, "LS") for i, (at, run, (gpus, milli)) in enumerate(drawn)]
    return tuple(sorted(made, key=lambda one: (one.created_s, one.name)))


@given(
    some_jobs(),
    st.sampled_from([Attained(RULES), Attained(RULES, lifts=False), ShortestFirst(), ShortestLeft(5)]),
    st.sampled_from([0, GPU_MIB, 3 * GPU_MIB, 1 << 30]),
    st.sampled_from([0.0, 0.3]),
)
@settings(max_examples=60)
def test_in_any_order_all_work_is_done_once_and_the_host_is_never_overbooked(
    jobs: tuple[Job, ...], order: Order, host_mib: int, failure: float
) -> None:
    costs = Costs(copied_mib_per_s=GPU_MIB, fixed_s=1.0, host_mib=host_mib, failure=failure)
    found, replay = in_turns(jobs, 2, order, costs)
    assert found.host_memory_mib_peak <= host_mib
    assert not [move for _, move in replay.log if isinstance(move, Evict)]
    for number, (of, told) in enumerate(zip(jobs, replay.told, strict=True)):
        on_gpu = told.copied_milli_s / (of.gpus * of.milli) + of.run_s
        assert told.ran_s == pytest.approx(on_gpu)
        assert sum(isinstance(move, End) and move.job == number for _, move in replay.log) == 1


def by_kerf(jobs: tuple[Job, ...], gpus: int, costs: Costs) -> tuple[Figures, Replay]:
    replay = Replay(jobs, gpus, 0.0, costs)
    found = figures(jobs, replay.run(KerfTurns(jobs, gpus, costs)), gpus, replay.host_mib_peak)
    return found, replay


def test_through_the_cores_a_new_job_takes_the_turn_of_one_that_has_had_more() -> None:
    """a is at a level below that of a new job from 600 s on. b comes at 2,000 s and has the GPU when a's memory is on
    the host; a comes back, and does what it had left."""
    jobs = (job("a", 0, 5000), job("b", 2000, 30))
    costs = Costs(copied_mib_per_s=GPU_MIB, fixed_s=1.0, host_mib=GPU_MIB)
    found, replay = by_kerf(jobs, 1, costs)
    assert (found.turns, found.host_memory_mib_peak, found.evictions) == (1, GPU_MIB, 0)
    assert replay.told[1].end_s == pytest.approx(2032, abs=10)
    assert replay.told[0].end_s == pytest.approx(5000 + 34, abs=20)


def test_through_the_cores_no_memory_goes_to_a_host_that_has_none() -> None:
    jobs = (job("a", 0, 5000), job("b", 2000, 30))
    found, _ = by_kerf(jobs, 1, Costs(host_mib=GPU_MIB - 1))
    assert (found.turns, found.makespan_s) == (0, 5030)


@given(some_jobs(), st.sampled_from([0, 2 * GPU_MIB]), st.sampled_from([0.0, 0.5]))
@settings(max_examples=4, deadline=None)
def test_through_the_cores_all_work_is_done_once_and_the_host_is_never_overbooked(
    jobs: tuple[Job, ...], host_mib: int, failure: float
) -> None:
    long = tuple(msgspec.structs.replace(one, run_s=5 * one.run_s) for one in jobs)
    costs = Costs(copied_mib_per_s=GPU_MIB, fixed_s=1.0, host_mib=host_mib, failure=failure)
    found, replay = by_kerf(long, 2, costs)
    assert found.host_memory_mib_peak <= host_mib
    assert (found.evictions, len(replay.told)) == (0, len(long))


def test_the_arrivals_are_scaled_to_a_load() -> None:
    jobs = (job("a", 100, 30), job("b", 400, 30, 500))
    assert [one.created_s for one in at_load(jobs, 1, 0.5)] == [0, 90]
    with pytest.raises(ValueError, match="all jobs arrive at once"):
        at_load((job("a", 5, 3), job("b", 5, 3)), 1, 1.0)


def test_the_host_has_what_a_node_has_beside_what_its_jobs_request(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("memory_mib,gpu\n800,8\n800,8\n1600,8\n90,2\n")
    assert host_mib_per_gpu(nodes, (job("a", 0, 30, host_mib=40), job("b", 0, 10, host_mib=80))) == 100 - 50
    with pytest.raises(ValueError, match="request 100 MiB a GPU, and the nodes have 100"):
        host_mib_per_gpu(nodes, (job("a", 0, 30, host_mib=100),))


def test_turns_of_the_trace_end_its_jobs_ten_times_earlier_where_the_host_has_room() -> None:
    """Only its first thousand jobs; docs/benchmarks.md has the whole trace, and what a small host costs."""
    jobs = read_jobs(DATA / "openb_pod_list_default.csv.gz", 8).jobs[:1000]
    native = Replay(jobs, 8, 0.1)
    found, _ = in_turns(jobs, 8, Attained(TurnRules()), Costs(host_mib=1 << 40))
    assert found.mean_completion_s < figures(jobs, native.run(Native(jobs, 8)), 8).mean_completion_s / 10


def said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *flags: str
) -> dict[str, Any]:
    """Runs the command for two jobs on one GPU; returns its document, which stands alone on stdout."""
    head = "name,num_gpu,gpu_milli,qos,creation_time,deletion_time,scheduled_time\n"
    (tmp_path / "pods.csv").write_text(head + "a,1,1000,LS,0,9000,0\nb,1,1000,LS,4000,4010,4000\n")
    pods = ["--pods", str(tmp_path / "pods.csv"), "--gpus", "1", "--turns", "--json"]
    monkeypatch.setattr(sys, "argv", ["jobs", *pods, *flags])
    main()
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_command_prints_what_turns_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = said(tmp_path, monkeypatch, capsys, "--scaled", "1", "--processes", "1")
    names = {"native", "kerf", "kerf_turns", "tiresias", "shortest_first", "srtf"}
    names |= {"tiresias_unbounded", "srtf_unbounded", "kerf_turns_unbounded"}
    assert all(document[name].keys() == set(Figures.__struct_fields__) for name in names)
    assert [document[name]["turns"] for name in ("tiresias", "kerf_turns", "kerf")] == [1, 1, 0]
    assert [(row["gpus"], row["load"]) for row in document["scaled"]] == [(1, 0.9), (1, 1.1), (1, 1.3)]
    assert all(row.keys() > names for row in document["scaled"])


def test_processes_side_by_side_find_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = said(tmp_path, monkeypatch, capsys, "--processes", "1")
    assert said(tmp_path, monkeypatch, capsys, "--processes", "2") == alone


def test_only_the_first_jobs_run_and_only_on_the_host_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = said(tmp_path, monkeypatch, capsys, "--processes", "1", "--jobs", "1", "--hosts", "bounded")
    assert (document["jobs"], document["kerf_turns"]["makespan_s"]) == (1, 9000.0)
    assert not [name for name in document if name.endswith("_unbounded")]


def test_what_follows_from_the_end_of_a_copy_is_done_at_the_next_step() -> None:
    """A resumption that was ordered during the copy begins when it is over, before the step of that instant."""
    kerf = KerfTurns((job("a", 0, 10),), 1, COSTS)
    (started,) = kerf.step(0.0, [], [0])
    assert isinstance(started, Start)
    (held,) = kerf.placement.book.grants.values()
    order = NodeGrant(term=100, uid=held.uid, namespace=held.namespace, name=held.name, grant=held.given, number=900)
    gone = msgspec.structs.replace(order, suspension=Suspension(action="checkpoint", plan_id="p"))
    assert kerf._ordered(gone) == []
    assert kerf.step(4.0, [], []) == [Suspend(0, "host")]
    assert kerf._ordered(msgspec.structs.replace(order, number=901)) == []
    kerf.copied([Copied(0, "parked")])
    assert kerf.step(6.0, [], []) == [Resume(0, (WHOLE,))]
