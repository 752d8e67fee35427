"""The clock of bench.jobs, the whole GPUs that it compares with, and the figures, against numbers worked out by
hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.jobs.__main__ import main
from bench.jobs.figures import Bound, Figures, bound, figures
from bench.jobs.kerf import Kerf, Use
from bench.jobs.native import Native
from bench.jobs.replay import End, Evict, Impossible, Replay, Scheduler, Share, Start
from bench.jobs.trace import Job, read_jobs
from bench.openb.__main__ import DATA
from bench.openb.trace import GPU_MIB

QOS = ("BE", "Burstable", "LS")
QUEUES = Use(queues=True, evicts=False)
USES = {"queues": QUEUES, "in order": Use(), "priorities": Use(priorities=True), "reclaim": Use(queues=True)}


def job(name: str, created_s: int, run_s: int, milli: int = 1000, gpus: int = 1, qos: str = "LS") -> Job:
    return Job(name, created_s, run_s, gpus, milli, qos)


FIVE = (
    job("a", 0, 10, 500),
    job("b", 0, 10, 500),
    job("c", 0, 10),
    job("d", 1, 4, gpus=2),
    job("e", 2, 3, 500, qos="BE"),
)


class Fickle(Scheduler):
    """Places jobs that fit and evicts at random."""

    def __init__(self, jobs: tuple[Job, ...], gpus: int, random: Random) -> None:
        self._jobs, self._random, self._waiting, self._evictions = jobs, random, list[int](), 5
        self._free, self._has = [1000] * gpus, dict[int, list[int]]()

    def step(self, now_s: float, ended: list[int], arrived: list[int]) -> list[Start | Evict]:
        del now_s
        moves: list[Start | Evict] = []
        for one in ended:
            self._give_back(one)
        if self._evictions and self._has and self._random.random() < 0.3:
            self._evictions -= 1
            victim = self._random.choice(sorted(self._has))
            self._give_back(victim)
            self._waiting.append(victim)
            moves.append(Evict(victim))
        self._waiting += arrived
        for one in list(self._waiting):
            of = self._jobs[one]
            fits = [gpu for gpu, free in enumerate(self._free) if free >= of.milli][: of.gpus]
            if len(fits) == of.gpus:
                self._waiting.remove(one)
                self._has[one] = fits
                for gpu in fits:
                    self._free[gpu] -= of.milli
                moves.append(Start(one, tuple(Share(gpu, of.milli, of.milli * GPU_MIB // 1000) for gpu in fits)))
        return moves

    def _give_back(self, one: int) -> None:
        for gpu in self._has.pop(one):
            self._free[gpu] += self._jobs[one].milli


def replayed(jobs: tuple[Job, ...], gpus: int, scheduler: Scheduler, interference: float = 0.1) -> Figures:
    replay = Replay(jobs, gpus, interference)
    outcome = replay.run(scheduler)
    audit(jobs, gpus, interference, replay)
    return figures(jobs, outcome, gpus)


def audit(jobs: tuple[Job, ...], gpus: int, interference: float, replay: Replay) -> None:
    """From the log alone: no GPU has more than it can hold, every job is done once and completely, and is slower only
    while it shares."""
    on: list[dict[int, Share]] = [{} for _ in range(gpus)]
    done = dict.fromkeys(range(len(jobs)), 0.0)
    last = 0.0
    for now, move in replay.log:
        for one in {one for gpu in on for one in gpu}:
            shared = any(one in gpu and len(gpu) > 1 for gpu in on)
            done[one] += (now - last) / (1 + interference if shared else 1)
        last = now
        if isinstance(move, Start):
            assert len({share.gpu for share in move.shares}) == jobs[move.job].gpus
            assert all(share.milli >= jobs[move.job].milli for share in move.shares)
            for share in move.shares:
                on[share.gpu][move.job] = share
                assert sum(s.milli for s in on[share.gpu].values()) <= 1000
                assert sum(s.mib for s in on[share.gpu].values()) <= GPU_MIB
            continue
        for gpu in on:
            gpu.pop(move.job, None)
        if isinstance(move, End):
            assert done[move.job] == pytest.approx(jobs[move.job].run_s, rel=1e-9)
            assert replay.told[move.job].end_s == now >= jobs[move.job].created_s + jobs[move.job].run_s - 1e-6
        else:
            done[move.job] = 0.0
    assert sorted(move.job for _, move in replay.log if isinstance(move, End)) == list(range(len(jobs)))


@st.composite
def some_jobs(draw: st.DrawFn) -> tuple[Job, ...]:
    shapes = st.one_of(st.tuples(st.just(1), st.integers(1, 100).map(lambda percent: 10 * percent)), st.just((2, 1000)))
    drawn = draw(
        st.lists(
            st.tuples(st.integers(0, 20), st.integers(1, 20), shapes, st.sampled_from(QOS)), min_size=1, max_size=12
        )
    )
    made = [Job(f"j{i:02d}", at, run, gpus, milli, qos) for i, (at, run, (gpus, milli), qos) in enumerate(drawn)]
    return tuple(sorted(made, key=lambda one: (one.created_s, one.name)))


def test_whole_gpus_are_given_in_order_of_arrival_and_a_job_that_does_not_fit_blocks_no_other() -> None:
    """a and b take a GPU each until 10; then c, and beside it e, because d needs both; c ends at 20, and d runs until
    24."""
    outcome = replayed(FIVE, 2, Native(FIVE, 2))
    assert outcome.mean_completion_s == round((10 + 10 + 20 + 23 + 11) / 5, 1)
    assert outcome.makespan_s == 24
    assert outcome.p99_completion_s == 23
    assert outcome.mean_wait_s == round((0 + 0 + 10 + 19 + 8) / 5, 1)
    assert outcome.wait_by_qos == {"BE": 8, "LS": round((0 + 0 + 10 + 19) / 4, 1)}
    assert outcome.gpu_utilisation == round((5 + 5 + 10 + 8 + 1.5) / (2 * 24), 4)
    assert (outcome.evictions, outcome.gpu_seconds_lost) == (0, 0)


def test_in_strict_order_no_job_starts_before_an_older_one() -> None:
    """e waits behind d: d runs from 20 to 24, and then e until 27."""
    outcome = replayed(FIVE, 2, Native(FIVE, 2, strict=True))
    assert (outcome.makespan_s, outcome.mean_completion_s) == (27, round((10 + 10 + 20 + 23 + 25) / 5, 1))


def test_kerf_slices_a_gpu_and_its_slices_are_slower_while_they_share_it() -> None:
    """a and b share a GPU until 11, c has the other until 10, e that from 10 to 13, alone and at full speed; then d."""
    outcome = replayed(FIVE, 2, Kerf(FIVE, 2, Use()))
    assert outcome.mean_completion_s == round((11 + 11 + 10 + 16 + 11) / 5, 1)
    assert outcome.makespan_s == 17
    assert outcome.gpu_utilisation == round(29.5 / (2 * 17), 4)


def test_a_job_regains_its_speed_when_the_others_have_left() -> None:
    """Ten seconds of work: 5.5 s beside another job do 5 of them, and 5 s alone the other 5."""
    two = (job("a", 0, 10, 500), job("b", 0, 5, 500))
    replay = Replay(two, 1, 0.1)
    outcome = replay.run(Kerf(two, 1, Use()))
    assert [one.end_s for one in outcome] == pytest.approx([10.5, 5.5])


def test_with_a_queue_per_class_no_job_waits_behind_a_class_that_uses_more() -> None:
    """When the first half of the GPU is free again, LS has the other one, so the job of BE goes before the older one of
    LS."""
    jobs = (job("l0", 0, 100, 500), job("l1", 1, 300, 500), job("l2", 2, 100, 500), job("b0", 3, 5, 500, qos="BE"))
    assert replayed(jobs, 1, Kerf(jobs, 1, QUEUES), 0.0).wait_by_qos == {"BE": 97, "LS": round(103 / 3, 1)}
    assert replayed(jobs, 1, Kerf(jobs, 1, Use()), 0.0).wait_by_qos == {"BE": 197, "LS": round(98 / 3, 1)}


def test_work_lost_by_an_eviction_is_counted_and_repeated() -> None:
    """LS comes after 30 s of BE; those are lost, and from 40 on BE has all of its 100 s still to do."""
    jobs = (job("b", 0, 100, qos="BE"), job("l", 30, 10))
    outcome = replayed(jobs, 1, Kerf(jobs, 1, Use(priorities=True)))
    assert (outcome.evictions, outcome.gpu_seconds_lost, outcome.makespan_s) == (1, 30, 140)
    assert outcome.wait_by_qos == {"BE": 10, "LS": 0}
    assert outcome.gpu_utilisation == round(110 / 140, 4)


@given(some_jobs(), st.sampled_from([0.0, 0.1, 0.5]), st.integers(0, 1000))
def test_under_any_scheduler_all_work_is_done_and_no_job_is_slower_than_necessary(
    jobs: tuple[Job, ...], interference: float, seed: int
) -> None:
    for scheduler in (Native(jobs, 2), Native(jobs, 2, strict=True), Fickle(jobs, 2, Random(seed))):
        replayed(jobs, 2, scheduler, interference)


@given(some_jobs(), st.sampled_from(sorted(USES)))
@settings(max_examples=30)
def test_the_cores_overcommit_nothing_and_no_result_is_better_than_the_bound(jobs: tuple[Job, ...], use: str) -> None:
    outcome, least = replayed(jobs, 2, Kerf(jobs, 2, USES[use])), bound(jobs, 2, 0.1)
    assert_no_better(outcome, least)


@given(some_jobs())
def test_whole_gpus_slow_no_job_down_and_stay_within_their_bound(jobs: tuple[Job, ...]) -> None:
    replay = Replay(jobs, 2, 0.5)
    outcome = replay.run(Native(jobs, 2))
    assert [one.ran_s for one in outcome] == pytest.approx([one.run_s for one in jobs])
    result = figures(jobs, outcome, 2)
    assert result.gpu_utilisation == pytest.approx(
        sum(one.gpus * one.milli * one.run_s for one in jobs) / 2000 / result.makespan_s, abs=1e-4
    )
    assert_no_better(result, bound(jobs, 2, 0.5, whole=True))


def assert_no_better(told: Figures, least: Bound) -> None:
    assert told.makespan_s >= least.makespan_s - 0.1
    assert told.mean_completion_s >= least.mean_completion_s - 0.1
    assert told.gpu_utilisation <= least.gpu_utilisation + 1e-3


def test_the_bound_sees_that_three_slices_of_460_do_not_fit_on_one_gpu() -> None:
    """Three of 100 s: by their sum 152 s of a GPU; in pairs 165 with interference, because two may share it and one is
    alone."""
    jobs = tuple(job(name, 0, 100, 460) for name in "abc")
    assert bound(jobs, 1, 0.1).makespan_s == 165
    assert bound(jobs, 1, 0.0).makespan_s == 150
    assert bound(jobs, 1, 0.1, whole=True) == Bound(mean_completion_s=200, makespan_s=300, gpu_utilisation=0.46)


class Careless(Scheduler):
    def __init__(self, moves: list[Start | Evict]) -> None:
        self._moves = moves

    def step(self, now_s: float, ended: list[int], arrived: list[int]) -> list[Start | Evict]:
        del now_s, ended, arrived
        moves, self._moves = self._moves, []
        return moves


HALF = Share(0, 500, GPU_MIB // 2)


@pytest.mark.parametrize(
    ("moves", "sentence"),
    [
        ([Start(0, (HALF,)), Start(1, (Share(0, 501, 1),))], "given away twice: -1 thousandths"),
        ([Start(0, (HALF,)), Start(1, (Share(0, 500, GPU_MIB),))], "given away twice: 0 thousandths and -8000 MiB"),
        ([Start(0, (HALF,)), Start(0, (HALF,))], "a was started and does not wait"),
        ([Start(2, (HALF,))], "late was started and does not wait"),
        ([Start(0, (HALF,))], "2 jobs were never done"),
    ],
)
def test_a_scheduler_that_overcommits_or_forgets_a_job_is_detected(moves: list[Start | Evict], sentence: str) -> None:
    jobs = (job("a", 0, 10, 500), job("b", 0, 10, 500), job("late", 5, 1, 500))
    with pytest.raises(Impossible, match=sentence):
        Replay(jobs, 1, 0.1).run(Careless(moves))


HEAD = "name,num_gpu,gpu_milli,qos,creation_time,deletion_time,scheduled_time\n"


def test_run_time_is_from_scheduling_or_creation_to_deletion(tmp_path: Path) -> None:
    rows = (
        "p2,1,500,BE,10,40,\np1,1,500,LS,10,40,15\ncpu,0,0,LS,1,9,2\n"
        "none,1,1000,LS,7,7,\nback,1,1000,LS,7,8,9\nopen,1,1000,LS,7,,8\n"
    )
    (tmp_path / "pods.csv").write_text(HEAD + rows)
    found = read_jobs(tmp_path / "pods.csv", 8)
    assert found.jobs == (Job("p1", 10, 25, 1, 500, "LS"), Job("p2", 10, 30, 1, 500, "BE"))
    assert (found.without_gpu, found.without_life, found.work_milli_s) == (1, 3, 27_500)


@pytest.mark.parametrize(
    ("text", "more", "sentence"),
    [
        ("", [], "has no column name"),
        (HEAD, [], "has no pod with a GPU and a life"),
        (
            HEAD + "p,2,1000,LS,0,9,0\n",
            ["--gpus", "1"],
            "pod p asks for 2 GPUs and would wait for ever; name --gpus 2 or more",
        ),
        (HEAD + "p,2,500,LS,0,9,0\n", [], "pod p asks for 500 thousandths of each of 2 GPUs"),
        (HEAD + "p,1,0,LS,0,9,0\n", [], "pod p asks for 0 thousandths"),
        (HEAD + "p,1,500,LS,,9,0\n", [], "pod p has no creation_time"),
        (HEAD + "p,1,500,LS,now,9,0\n", [], "pod p has 'now' in column creation_time"),
        (HEAD + "p,1,500,LS,0,9,0\n", ["--interference", "-0.1"], "nothing below 0"),
        (HEAD + "p,1,500,LS,0,9,0\n", ["--gpus", "0"], "at least one GPU"),
    ],
)
def test_input_that_makes_no_sense_is_named(
    text: str,
    more: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "pods.csv").write_text(text)
    monkeypatch.setattr(sys, "argv", ["jobs", "--pods", str(tmp_path / "pods.csv"), *more])
    with pytest.raises(SystemExit):
        main()
    assert sentence in capsys.readouterr().err


def test_the_command_prints_one_object_on_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pods.csv").write_text(HEAD + "a,1,500,LS,0,10,0\nb,1,500,BE,0,10,0\n")
    flags = ["--gpus", "1", "--all", "--json", "--processes", "1"]
    monkeypatch.setattr(sys, "argv", ["jobs", "--pods", str(tmp_path / "pods.csv"), *flags])
    main()
    document = json.loads(capsys.readouterr().out)
    assert document["native"]["makespan_s"] == document["native_strict"]["makespan_s"] == 20
    assert document["kerf"]["makespan_s"] == document["kerf_in_order"]["makespan_s"] == 11
    assert document["native"].keys() == document["kerf"].keys() == set(Figures.__struct_fields__)
    assert document["earlier_percent"] == round(100 * (1 - 11 / 15), 1)
    assert document["more_used_points"] == round(100 * (10 / 11 - 10 / 20), 1)


def test_jobs_of_the_trace_end_at_least_a_fifth_earlier_and_use_more_of_the_gpus() -> None:
    """Only its first thousand jobs; the whole trace takes a quarter of a minute."""
    jobs = read_jobs(DATA / "openb_pod_list_default.csv.gz", 8).jobs[:1000]
    native, kerf = replayed(jobs, 8, Native(jobs, 8)), replayed(jobs, 8, Kerf(jobs, 8, QUEUES))
    assert kerf.mean_completion_s < 0.8 * native.mean_completion_s
    assert kerf.gpu_utilisation > native.gpu_utilisation
    assert kerf.wait_by_qos["LS"] < native.wait_by_qos["LS"]
