"""Which pods take turns with which, and whose turn ends."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf

import msgspec
import pytest

from shared.book.book import Book
from shared.book.gangs import Gangs
from shared.book.states import PodState
from shared.contracts.facts import Put
from shared.contracts.policy import read_queues
from shared.contracts.preemption import Action
from shared.model import names
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.objects import Pod, PodStatus
from shared.model.strategies import StrategyName
from shared.model.suspension import Suspension, encode_suspension
from shared.queues.queues import Queues
from shared.queues.turns import TurnPolicy
from shared.turns.gpu_time import GpuTime, encode_gpu_time
from shared.turns.rules import DUE_BACK, OVERDUE
from tests.support import build

NOW = 1_800_000_000.0
ALLOWED = {names.ANNOTATION_TURNS: "allowed"}
NEVER = {names.ANNOTATION_TURNS: "never"}


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Circle:
    """One node of eight GPUs; every pod has or wants one of them."""

    def __init__(self, queues: str | None = None) -> None:
        self.book = Book()
        self.book.apply(Put(object=build.node("n")))
        self.book.put_inventory(build.inventory("n", gpus=8))
        self.book.set_agent_trouble("n", "")
        self.gangs = Gangs(self.book)
        self.queues = Queues(self.book)
        self.queues.enact(None if queues is None else read_queues(queues))
        self.turns = TurnPolicy(self.queues, self.gangs)
        self._next, self._said = 0, 1

    def run(
        self,
        name: str,
        notes: dict[str, str] | None = None,
        *,
        for_s: float = 3_600,
        strategy: StrategyName = "interposer",
        **rest: object,
    ) -> PodState:
        share = GpuShare(node="n", uuid=f"n-gpu-{self._next}", memory_mib=81_920, compute_milli=1000)
        self._next += 1
        grant = Grant(
            grant_id=f"grant-{name}", term=1, containers={"c": ContainerGrant(strategy=strategy, gpus=(share,))}
        )
        pod = build.bound(build.gpu_pod(name, gpus=1, annotations=ALLOWED | (notes or {}), **rest), "n", grant)  # type: ignore[arg-type]
        return self.see(msgspec.structs.replace(pod, status=PodStatus(phase="Running", start_time=stamp(NOW - for_s))))

    def wait(self, name: str, notes: dict[str, str] | None = None, *, for_s: float = 60, **rest: object) -> PodState:
        made = build.gpu_pod(name, gpus=1, annotations=ALLOWED | (notes or {}), created=stamp(NOW - for_s), **rest)  # type: ignore[arg-type]
        return self.see(made)

    def see(self, pod: Pod) -> PodState:
        self.book.apply(Put(object=pod))
        state = self.book.pods[pod.metadata.uid]
        self.gangs.see(state, 0.0)
        return state

    def annotate(self, state: PodState, notes: dict[str, str]) -> PodState:
        pod = state.pod
        return self.see(build.newer(pod, annotations=pod.metadata.annotations | notes))

    def idle(self, *idle: PodState, since: float = NOW, woken: dict[str, float] | None = None) -> None:
        """The node says that these are idle; `woken`: by grant, since when others want the GPU."""
        self._said += 1
        seen = build.inventory("n", gpus=8, generation=self._said)
        grants = {state.grant_id: since for state in idle}
        self.book.put_inventory(msgspec.structs.replace(seen, idle_grants=grants, woken_grants=woken or {}))

    def denies(self, waiting: PodState, running: PodState) -> str:
        return self.turns.denial_reason(waiting, running, NOW)

    def refuses(self, waiting: PodState, *victims: PodState, action: Action = "pause") -> str:
        return self.turns.refuses([waiting], victims, {v.uid: action for v in victims}, NOW)


def test_a_new_job_takes_the_turn_of_one_that_has_had_more() -> None:
    circle = Circle()
    long, new = circle.run("long"), circle.wait("new")
    assert circle.denies(new, long) == ""
    assert circle.refuses(new, long) == ""


@pytest.mark.parametrize("ran_s", [30, 300])
def test_a_turn_lasts_for_its_minimum_and_within_its_level(ran_s: int) -> None:
    circle = Circle()
    assert circle.denies(circle.wait("new"), circle.run("young", for_s=ran_s)) == "its turn goes on"


@pytest.mark.parametrize(
    ("queue", "annotation", "takes"),
    [("allowed", None, True), ("never", None, False), ("never", "allowed", True), ("allowed", "never", False)],
)
def test_the_annotation_counts_before_the_queue(queue: str, annotation: str | None, takes: bool) -> None:
    circle = Circle(f"queues: [{{name: top, turns: allowed}}, {{name: leaf, parent: top, turns: {queue}}}]")
    notes = {} if annotation is None else {names.ANNOTATION_TURNS: annotation}
    state = circle.see(build.gpu_pod("p", gpus=1, annotations=notes, labels={names.LABEL_QUEUE: "leaf"}))
    assert circle.turns.takes_turns(state) is takes


def test_without_queues_the_annotation_alone_counts() -> None:
    circle = Circle()
    assert not circle.turns.takes_turns(circle.see(build.gpu_pod("p", gpus=1)))
    assert circle.turns.takes_turns(circle.wait("q"))


def test_jobs_take_turns_within_their_queue_and_priority() -> None:
    circle = Circle("queues: [{name: a}, {name: b}]")
    long = circle.run("long", labels={names.LABEL_QUEUE: "a"})
    other = circle.wait("other", labels={names.LABEL_QUEUE: "b"})
    higher = circle.wait("higher", labels={names.LABEL_QUEUE: "a"}, priority=1)
    assert circle.denies(other, long) == circle.denies(higher, long) == "of another queue or priority"
    assert circle.denies(circle.wait("same", labels={names.LABEL_QUEUE: "a"}), long) == ""


@pytest.mark.parametrize(
    ("notes", "strategy", "why"),
    [
        (NEVER, "interposer", "takes no turns"),
        ({names.ANNOTATION_PREEMPTIBLE: "false"}, "interposer", "marked kerf.dev/preemptible: false"),
        ({names.ANNOTATION_MIN_RUNTIME: "2h"}, "interposer", "minimum run time"),
        ({}, "advisory", "its strategy can neither pause nor checkpoint it"),
    ],
)
def test_pods_that_never_yield(notes: dict[str, str], strategy: StrategyName, why: str) -> None:
    circle = Circle()
    assert circle.denies(circle.wait("new"), circle.run("long", notes, strategy=strategy)) == why


def test_the_minimum_run_time_is_over_once_a_turn_has_ended() -> None:
    circle = Circle()
    record = encode_gpu_time(GpuTime(since=NOW - 3_600, attained_gpu_ms=1_000, turns=1))
    notes = {names.ANNOTATION_MIN_RUNTIME: "2h", names.ANNOTATION_GPU_TIME: record}
    assert circle.denies(circle.wait("new"), circle.run("long", notes)) == ""


@pytest.mark.parametrize("action", ["throttle", "shrink", "evict"])
def test_a_turn_ends_by_pause_or_checkpoint_alone(action: Action) -> None:
    circle = Circle()
    assert f"not by {action}" in circle.refuses(circle.wait("new"), circle.run("long"), action=action)


def test_a_gang_yields_as_a_whole_and_is_weighed_as_a_whole() -> None:
    circle = Circle()
    notes = {names.ANNOTATION_GANG: "g", names.ANNOTATION_GANG_SIZE: "2"}
    one, two = circle.run("one", notes, for_s=400), circle.run("two", notes, for_s=400)
    new = circle.wait("new")
    job = circle.turns.job(one, NOW)
    assert (job.key, job.attained_gpu_ms) == ("team/g", 800_000), "each alone would still be at level 0"
    assert "team/two is no victim" in circle.refuses(new, one)
    assert circle.refuses(new, one, two) == ""
    assert circle.denies(circle.wait("three", notes), one) == "the same job"


def test_a_gang_stays_where_one_of_it_takes_no_turns() -> None:
    circle = Circle()
    notes = {names.ANNOTATION_GANG: "g", names.ANNOTATION_GANG_SIZE: "2"}
    one = circle.run("one", notes)
    circle.run("two", notes | NEVER)
    assert circle.denies(circle.wait("new"), one) == "takes no turns"


def test_a_suspended_job_waits_since_its_suspension_with_what_it_has_had() -> None:
    circle = Circle()
    record = GpuTime(since=NOW - 100, attained_gpu_ms=700_000, turns=1, lifted_at_gpu_ms=200_000)
    state = circle.annotate(
        circle.run("long"),
        {
            names.ANNOTATION_GPU_TIME: encode_gpu_time(record),
            names.ANNOTATION_SUSPENDED: encode_suspension(Suspension(action="pause", plan_id="p")),
        },
    )
    job = circle.turns.job(state, NOW)
    assert (job.attained_gpu_ms, job.since) == (500_000, NOW - 100)
    assert circle.turns.attained_gpu_ms(state, NOW) == 700_000
    assert circle.denies(circle.wait("new"), state) == "suspended already"
    assert circle.turns.rank(state, NOW + 90_000)[0] == OVERDUE


def test_what_has_run_since_the_last_resumption_counts() -> None:
    circle = Circle()
    record = GpuTime(since=NOW - 50, attained_gpu_ms=700_000, turns=1)
    state = circle.annotate(circle.run("long"), {names.ANNOTATION_GPU_TIME: encode_gpu_time(record)})
    assert circle.turns.attained_gpu_ms(state, NOW) == 750_000


def test_the_quota_counts_what_the_turns_end_frees() -> None:
    circle = Circle("queues: [{name: a, limit: {gpus: 1}}]")
    long = circle.run("long", labels={names.LABEL_QUEUE: "a"})
    new = circle.wait("new", labels={names.LABEL_QUEUE: "a"})
    assert circle.turns.quota_exceeded([new], [long], {long.uid: "checkpoint"}) == ""
    assert "quota of queue a" in circle.turns.quota_exceeded([new], [long], {long.uid: "pause"})


# --- idle jobs ------------------------------------------------------------------------------------------------------


def suspended(since: float, attained_gpu_ms: int = 0) -> dict[str, str]:
    return {
        names.ANNOTATION_SUSPENDED: encode_suspension(Suspension(action="checkpoint", plan_id="p")),
        names.ANNOTATION_GPU_TIME: encode_gpu_time(GpuTime(since=since, attained_gpu_ms=attained_gpu_ms)),
    }


def test_an_idle_job_yields_to_one_of_its_level_that_has_just_come() -> None:
    circle = Circle()
    young, new = circle.run("young", for_s=10), circle.wait("new")
    assert circle.denies(new, young) == "its turn goes on"
    circle.idle(young)
    assert circle.denies(new, young) == ""
    circle.idle()
    assert circle.denies(new, young) == "its turn goes on"


def test_idle_or_not_a_pod_that_takes_no_turns_keeps_its_gpu() -> None:
    circle = Circle()
    running = circle.run("firm", NEVER)
    circle.idle(running)
    assert not circle.turns.is_idle(running, NOW)
    assert circle.denies(circle.wait("new"), running) == "takes no turns"


def test_a_gang_is_idle_only_as_a_whole() -> None:
    circle = Circle()
    notes = {names.ANNOTATION_GANG: "g", names.ANNOTATION_GANG_SIZE: "2"}
    first, second = circle.run("a", notes, for_s=10), circle.run("b", notes, for_s=10)
    new = circle.wait("new")
    circle.idle(first)
    assert not circle.turns.is_idle(first, NOW)
    assert circle.denies(new, first) == "its turn goes on"
    circle.idle(first, second)
    assert circle.turns.is_idle(first, NOW)
    assert circle.denies(new, first) == ""
    second = circle.annotate(second, suspended(NOW - 5))
    assert not circle.turns.is_idle(first, NOW), "half of it runs: the other half has to follow"


def test_no_gpu_time_is_counted_while_a_job_is_idle() -> None:
    circle = Circle()
    running = circle.run("notebook", for_s=3_600)
    circle.idle(running, since=NOW - 3_000)
    assert circle.turns.attained_gpu_ms(running, NOW) == 600_000
    circle.idle()
    assert circle.turns.attained_gpu_ms(running, NOW) == 3_600_000


def test_a_suspended_job_stays_idle_until_its_wait_might_have_been_missed() -> None:
    circle = Circle()
    state = circle.annotate(circle.run("notebook"), suspended(NOW - 86_399))
    circle.idle(state, since=NOW - 90_000)
    assert circle.turns.is_idle(state, NOW)
    assert not circle.turns.is_idle(state, NOW + 2)


def test_a_job_that_wants_the_gpu_again_waits_from_that_moment_on() -> None:
    circle = Circle()
    state = circle.annotate(circle.run("notebook"), suspended(NOW - 50_000, 700_000))
    assert circle.turns.rank(state, NOW)[:2] == (1, NOW - 50_000)
    circle.idle(woken={state.grant_id: NOW - 3})
    assert not circle.turns.is_idle(state, NOW)
    assert circle.turns.rank(state, NOW)[:2] == (1, NOW - 3)
    assert circle.turns.rank(state, NOW + 80_000)[0] == 1, "it was not waiting while it was idle"
    assert circle.turns.rank(state, NOW + 86_397)[0] == OVERDUE


def test_a_gang_waits_since_its_first_pod_wants_the_gpu() -> None:
    circle = Circle()
    notes = {names.ANNOTATION_GANG: "g", names.ANNOTATION_GANG_SIZE: "2"}
    first, second = (circle.annotate(circle.run(name, notes), suspended(NOW - 5_000)) for name in "ab")
    circle.idle(first, second)
    assert circle.turns.is_idle(first, NOW)
    circle.idle(first, woken={second.grant_id: NOW - 7})
    assert not circle.turns.is_idle(first, NOW)
    assert circle.turns.job(first, NOW).since == NOW - 7


GANG = {names.ANNOTATION_GANG: "g", names.ANNOTATION_GANG_SIZE: "2"}


def watchdog(text: str) -> dict[str, str]:
    return {names.ANNOTATION_WATCHDOG: text}


@pytest.mark.parametrize(
    ("first", "second", "seconds"),
    [
        ({}, {}, 600),
        (watchdog("30m"), {}, 600),  # who says nothing bears ten minutes
        (watchdog("30m"), watchdog("20m"), 1_200),
        (watchdog("10s"), {}, 600),  # five of the shortest turns
        (watchdog("none"), {}, 600),
        (watchdog("none"), watchdog("none"), inf),
        (watchdog("none"), watchdog("1h"), 3_600),
    ],
)
def test_a_gang_has_the_shortest_bound_of_its_pods_or_ten_minutes(
    first: dict[str, str], second: dict[str, str], seconds: float
) -> None:
    circle = Circle()
    one, two = circle.run("one", GANG | first), circle.run("two", GANG | second)
    assert circle.turns.watchdog_s(one) == circle.turns.watchdog_s(two) == seconds
    assert circle.turns.job(one, NOW).bound_s == inf, "it runs"
    one, two = (circle.annotate(state, suspended(NOW - 100)) for state in (one, two))
    assert circle.turns.job(two, NOW).bound_s == seconds


def test_a_pod_has_a_bound_only_if_it_says_so_and_a_gang_none_if_the_rules_have_none() -> None:
    circle = Circle("queues: [{name: a}]\nturns: {watchdog_s: 0}")
    assert circle.turns.watchdog_s(circle.run("alone")) == circle.turns.watchdog_s(circle.run("one", GANG)) == inf
    assert circle.turns.watchdog_s(circle.run("b", watchdog("700"))) == 700


def test_a_job_that_is_due_back_ends_the_turn_of_one_of_a_lower_level() -> None:
    circle = Circle()
    away = circle.annotate(circle.run("away", watchdog("10m")), suspended(NOW - 359, 9_000_000))
    short = circle.run("short", for_s=130)
    assert circle.denies(away, short) == "its turn goes on"
    assert circle.turns.denial_reason(away, short, NOW + 1) == ""
    assert circle.turns.rank(away, NOW + 1)[0] == DUE_BACK


def test_no_more_jobs_with_watchdogs_take_turns_on_a_gpu_than_can_be_back_in_time() -> None:
    circle = Circle()
    long = circle.run("long")
    there = long.grant_id

    def also(name: str, text: str) -> PodState:
        """It had the same GPU before."""
        circle._next = 0
        return circle.annotate(circle.run(name, watchdog(text)), suspended(NOW - 100))

    assert circle.denies(circle.wait("first", watchdog("10m")), long) == ""
    away = [also(name, "10m") for name in "abc"]
    assert {
        share.uuid for state in away for share in circle.book.grants[state.grant_id].given.containers["c"].gpus
    } == {share.uuid for share in circle.book.grants[there].given.containers["c"].gpus}
    assert (
        circle.denies(circle.wait("fourth", watchdog("10m")), long) == "too many jobs with watchdogs have turns there"
    )
    assert circle.denies(circle.wait("patient", watchdog("none")), long) == ""
    assert circle.denies(circle.wait("without"), long) == ""
    assert circle.turns.denial_reason(away[0], long, NOW) == "", "it has its place among them"


@pytest.mark.parametrize("ahead_s", [5.0, 3_600.0])
def test_a_record_of_a_clock_that_was_ahead_delays_no_turn(ahead_s: float) -> None:
    """A job of which nothing is known but that goes first: its watchdog may end it."""
    circle = Circle()
    notes = ALLOWED | {names.ANNOTATION_GPU_TIME: encode_gpu_time(GpuTime(since=NOW + ahead_s, turns=1))}
    runs = circle.run("runs", notes)
    assert circle.turns.job(runs, NOW).since == NOW
    parked = {names.ANNOTATION_SUSPENDED: encode_suspension(Suspension(action="pause", plan_id="p"))}
    waits = circle.run("waits", notes | parked)
    at, since, _ = circle.turns.rank(waits, NOW)
    assert (at, since) == ((OVERDUE, NOW - 86_400) if ahead_s > 60 else (0, NOW))
