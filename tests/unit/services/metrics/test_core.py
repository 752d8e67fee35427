"""Events reduced to figures, and traces kept."""

from __future__ import annotations

from typing import Any

import pytest

from services.metrics.core import FIGURES_KEPT_S, Core, seconds_of
from services.metrics.traces import MOST_SPANS, TraceStore
from services.metrics.usage import Began, Capacity, Ended, GpuSize
from shared.contracts.envelope import unwrap, wrap
from shared.contracts.events import (
    Event,
    GpuStateChanged,
    GrantEnded,
    PlacementDecided,
    PlacementRejected,
    PodBound,
    PodResumed,
    PodSuspended,
    SliceEnforced,
    SliceReleased,
    TermTaken,
)
from shared.contracts.explain import PodExplanation, Reason
from shared.contracts.metrics_queries import Span
from shared.contracts.queries import QueueStanding, StatusAnswer
from shared.model.gpu import Gpu, Inventory
from shared.telemetry import Metrics

POD: dict[str, Any] = {"uid": "u1", "namespace": "team", "name": "p"}
ENFORCED = SliceEnforced(
    node="n1",
    container="c",
    grant_id="g1",
    strategy="advisory",
    promise="soft",
    gpus={"G": (400, 200)},
    model="H200",
    **POD,
)
RELEASED = SliceReleased(node="n1", grant_id="g1", boot_id="b", **POD)
ENDED = GrantEnded(node="n1", grant_id="g1", **POD)
INVENTORY = Inventory(
    node="n1",
    boot_id="b",
    gpus=(
        Gpu(uuid="G", index=0, model="H200", memory_mib=1000),
        Gpu(uuid="H", index=1, model="H200", memory_mib=1000, state="suspect"),
    ),
)


def make_core(*events: Event) -> tuple[Core, Metrics, list[Any]]:
    metrics = Metrics()
    core, records = Core(metrics), []
    for second, event in enumerate(events):
        envelope, read = unwrap(wrap(event, source="/test", now_s=1000 + second)[1])
        records += core.event(envelope, read)
    return core, metrics, records


def text_of(metrics: Metrics) -> list[str]:
    return metrics.render().decode().splitlines()


def test_a_slice_is_allocated_from_its_enforcement_to_its_release() -> None:
    core, _, records = make_core(ENFORCED)
    core.inventory("n1", INVENTORY)
    assert core.allocated() == {("n1", "H200"): (400, 200, 1)}
    assert records == [Began("g1", "c", "u1", "team", "p", "n1", "H200", 1_000_000, (("G", 400, 200),), "/test")]
    core, _, records = make_core(ENFORCED, RELEASED)
    assert core.allocated() == {}
    assert records[1] == Ended("g1", 1_001_000, by_node=True)


@pytest.mark.parametrize("end", [RELEASED, ENDED])
@pytest.mark.parametrize("order", [(0, 1, 0), (1, 0), (0, 0, 1), (0, 1, 1)])
def test_late_and_doubled_events_leave_nothing_allocated(end: Event, order: tuple[int, ...]) -> None:
    """A removed node reports nothing more; placement's report ends its grants too."""
    core, _, _ = make_core(*((ENFORCED, end)[i] for i in order))
    assert core.allocated() == {}


def test_inventories_give_sizes_and_capacity() -> None:
    core, metrics, _ = make_core()
    assert core.inventory("n1", INVENTORY) == [GpuSize("n1", "G", 1000), GpuSize("n1", "H", 1000)]
    lines = text_of(metrics)
    assert 'kerf_node_gpus{model="H200",node="n1"} 2.0' in lines
    assert 'kerf_node_gpu_memory_bytes{model="H200",node="n1"} 2.097152e+09' in lines
    assert 'kerf_node_gpus_unhealthy{model="H200",node="n1"} 1.0' in lines
    assert core.inventory("n1", None, 5.0) == [Capacity("n1", 5000, 0, "")]
    assert core.inventory("n1", None, 6.0) == []
    assert core.capacity() == {}


def test_outcomes_waits_and_terms_are_counted() -> None:
    explanation = PodExplanation(
        namespace="team",
        name="p",
        state="waiting",
        sentence="no",
        summary=(Reason(code="gpu-full", sentence="too little"),),
    )
    _, metrics, _ = make_core(
        PlacementDecided(node="n1", term=7, sequence=9, waited_ms=30, **POD),
        PlacementRejected(explanation=explanation, **POD),
        PodBound(node="n1", bound_ms=4, **POD),
        TermTaken(term=9, holder="a", seconds=0.2),
        TermTaken(term=8, holder="b", seconds=0.2),
    )
    lines = text_of(metrics)
    for line in (
        'kerf_placement_outcomes_total{outcome="decided"} 1.0', 'kerf_placement_outcomes_total{outcome="rejected"} 1.0',
        'kerf_placement_outcomes_total{outcome="bound"} 1.0', 'kerf_placement_rejections_total{code="gpu-full"} 1.0',
        'kerf_pod_wait_seconds_bucket{le="0.05"} 1.0', 'kerf_pod_wait_seconds_bucket{le="0.025"} 0.0',
        'kerf_pod_bind_seconds_bucket{le="0.005"} 1.0', "kerf_term 9.0",
    ):  # fmt: skip
        assert line in lines, line


def test_suspensions_their_lengths_and_moves_are_counted() -> None:
    of: dict[str, Any] = {"node": "n1", "grant_id": "g1", "action": "checkpoint", **POD}
    _, metrics, _ = make_core(
        PodSuspended(turn_of="team/q", **of),
        PodResumed(suspended_ms=7_000_000, moved=True, **of),
        PodSuspended(turn_of="team/q", idle=True, **of),
        PodResumed(suspended_ms=5_000, **of),
        PodSuspended(**of),
    )
    text = text_of(metrics)
    assert 'kerf_suspensions_total{action="checkpoint",why="turn"} 1.0' in text
    assert 'kerf_suspensions_total{action="checkpoint",why="idle"} 1.0' in text
    assert 'kerf_suspensions_total{action="checkpoint",why="other"} 1.0' in text
    assert 'kerf_suspended_seconds_bucket{action="checkpoint",le="5.0"} 1.0' in text
    assert 'kerf_suspended_seconds_bucket{action="checkpoint",le="14400.0"} 2.0' in text
    assert "kerf_moves_total 1.0" in text


def test_a_suspension_that_each_new_leader_says_again_counts_once() -> None:
    of: dict[str, Any] = {"node": "n1", "grant_id": "g1", "action": "checkpoint", **POD}
    first, again, other = (PodSuspended(plan_id=plan, **of) for plan in ("one", "one", "two"))
    _, metrics, _ = make_core(first, again, again, other, other)
    assert 'kerf_suspensions_total{action="checkpoint",why="other"} 2.0' in text_of(metrics)
    core, metrics, _ = make_core(first, PodResumed(**of), first, again, ENDED, again)
    assert 'kerf_suspensions_total{action="checkpoint",why="other"} 2.0' in text_of(metrics)
    assert core._open == {}


def test_a_pod_that_waited_for_hours_is_in_a_bucket_of_hours() -> None:
    _, metrics, _ = make_core(PlacementDecided(node="n1", term=7, sequence=9, waited_ms=7_200_000, **POD))
    lines = text_of(metrics)
    assert 'kerf_pod_wait_seconds_bucket{le="3600.0"} 0.0' in lines
    assert 'kerf_pod_wait_seconds_bucket{le="14400.0"} 1.0' in lines


def test_placements_metrics_are_passed_on() -> None:
    core, metrics, _ = make_core()
    core.answered(
        StatusAnswer(
            gpus=8,
            gpu_milli_allocated=2500,
            double_bookings=1,
            pods_waiting=3,
            fragmentation_milli=120,
            agents=9,
            agents_ready=8,
            oldest_wait_s=61.5,
        )
    )
    lines = text_of(metrics)
    for line in (
        "kerf_gpus 8.0",
        "kerf_gpu_compute_allocated_gpus 2.5",
        "kerf_gpu_milli_allocated 2500.0",
        "kerf_double_bookings 1.0",
        "kerf_pods_waiting 3.0",
        "kerf_fragmented_gpus 0.12",
        "kerf_agents 9.0",
        "kerf_agents_ready 8.0",
        "kerf_pods_waiting_oldest_seconds 61.5",
    ):
        assert line in lines


def test_placements_metrics_have_no_samples_before_its_first_answer_nor_long_after_the_last() -> None:
    """A 0 that was never asked for, or one of an hour ago, would look healthy."""
    metrics, times = Metrics(), [100.0]
    core = Core(metrics, lambda: times[0])
    figures = ("kerf_double_bookings ", "kerf_gpu_milli_total ", "kerf_queue_gpus_used{")

    def shown() -> tuple[list[str], int]:
        lines = text_of(metrics)
        age = [line for line in lines if line.startswith("kerf_status_age_seconds ")]
        return age, sum(line.startswith(figures) for line in lines)

    times[0] = 107.0
    assert shown() == (["kerf_status_age_seconds 7.0"], 0), "since the start where there was no answer"
    core.answered(StatusAnswer(gpus=8))
    core.queues_answered((QueueStanding(name="a"),))
    assert shown() == (["kerf_status_age_seconds 0.0"], 3)
    times[0] += FIGURES_KEPT_S
    assert shown() == (["kerf_status_age_seconds 60.0"], 3)
    times[0] += 1.0
    assert shown() == (["kerf_status_age_seconds 61.0"], 0)


def test_queues_are_passed_on_and_one_without_a_limit_has_no_sample_of_it() -> None:
    core, metrics, _ = make_core()
    core.queues_answered(
        (
            QueueStanding(name="a", gpu_milli_used=1500, gpu_milli_limit=2000, waiting=3),
            QueueStanding(name="b"),
        )
    )
    lines = text_of(metrics)
    for line in (
        'kerf_queue_gpus_used{queue="a"} 1.5',
        'kerf_queue_pods_waiting{queue="a"} 3.0',
        'kerf_queue_gpus_used{queue="b"} 0.0',
    ):
        assert line in lines
    assert [line for line in lines if line.startswith("kerf_queue_gpus_limit{")] == [
        'kerf_queue_gpus_limit{queue="a"} 2.0'
    ]


def test_a_pods_uid_is_the_newest_of_its_name() -> None:
    core, _, _ = make_core(ENFORCED, PodBound(uid="u2", namespace="team", name="p", node="n1"))
    assert (core.uid_of("team", "p"), core.uid_of("team", "q")) == ("u2", "")


def test_what_was_held_is_held_again_after_a_restart() -> None:
    core = Core(Metrics())
    core.restore([Began("g1", "c", "u1", "team", "p", "n1", "H200", 0, (("G", 400, 200),))])
    core.inventory("n1", INVENTORY)
    assert core.allocated() == {("n1", "H200"): (400, 200, 1)}
    assert core.uid_of("team", "p") == "u1"


def test_an_unknown_event_is_counted_and_passed_over() -> None:
    core, metrics, _ = make_core()
    payload = wrap(ENDED, source="/test", now_s=1)[1].replace(b"grant.ended", b"grant.adored")
    envelope, read = unwrap(payload)
    assert (read, core.event(envelope, read)) == (None, [])
    assert 'kerf_events_total{type="other"} 1.0' in text_of(metrics)


def test_an_agent_cannot_make_up_values_of_labels() -> None:
    """Each value is a series that stays."""
    states = [GpuStateChanged(node="n1", uuid="G", state=state) for state in ("suspect", "gone", "made-up", "up")]
    slices = [
        SliceEnforced(
            node=f"made-up-{number}", container="c", grant_id=f"g{number}", strategy="advisory", promise="soft",
            gpus={"X": (400, 200)}, **POD,
        )
        for number in range(3)
    ]  # fmt: skip
    core, metrics, _ = make_core(*states, *slices)
    lines = [line for line in text_of(metrics) if line.startswith("kerf_gpu_state_changes_total{")]
    assert [line.split('"')[1] for line in lines] == ["suspect", "gone", "other"]
    assert core.allocated() == {("unknown", "unknown"): (1200, 600, 3)}


def test_times_are_read_or_are_nothing() -> None:
    assert seconds_of("1970-01-01T00:00:01.500000Z") == 1.5
    assert seconds_of("yesterday") == 0.0


# --- traces -----------------------------------------------------------------------------------------------------


def span(trace: str, number: int) -> Span:
    return Span(
        trace_id=trace, span_id=f"s{number}", parent_id="", name="x", service="t", start_ns=number, end_ns=number + 1
    )


def test_a_trace_is_given_in_order_whatever_order_it_came_in() -> None:
    store = TraceStore(10)
    store.add([span("a", 2), span("a", 1), span("b", 5), span("a", 2)])
    assert [s.start_ns for s in store.get("a")] == [1, 2]
    assert store.get("c") == ()


def test_the_newest_traces_are_kept() -> None:
    store = TraceStore(2)
    store.add([span("a", 1), span("b", 1), span("a", 2), span("c", 1)])
    assert [len(store.get(trace)) for trace in "abc"] == [2, 0, 1]


def test_an_endless_trace_keeps_its_beginning_and_its_end() -> None:
    store = TraceStore(2)
    store.add(span("a", i) for i in range(MOST_SPANS + 50))
    kept = [s.start_ns for s in store.get("a")]
    assert (len(kept), kept[0], kept[-1], store.dropped_spans) == (MOST_SPANS, 0, MOST_SPANS + 49, 50)
