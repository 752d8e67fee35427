"""GPU time as NVML reports it, compared with the share: when overuse begins and ends, and the throttle quota."""

from __future__ import annotations

import msgspec
import pytest

from services.node_agent.strategies.overuse import (
    CYCLE_NS,
    Overuse,
    OveruseDetector,
    ThrottleQuota,
    Usage,
    pod_usage,
    update_quotas,
)
from services.node_agent.strategies.slices import Part, Slice


def used(milli: int, share: int = 100, uid: str = "a") -> Usage:
    return Usage(uid=uid, uuid="G", containers=((uid, "c"),), used_milli=milli, share_milli=share)


def run(overuses: OveruseDetector, samples: list[int], begin_s: float = 0.0, every_s: float = 1.0) -> list[int]:
    """Returns the reported overuse after each sample; 0: none."""
    return [
        sum(over.over_milli for over in overuses.update(begin_s + place * every_s, [used(milli)]))
        for place, milli in enumerate(samples)
    ]


def test_overuse_is_a_mean_above_the_share_over_a_whole_window() -> None:
    assert run(OveruseDetector(100, 4), [500] * 7) == [0, 0, 0, 0, 400, 400, 400]


@pytest.mark.parametrize(
    "samples",
    [[180, 30, 160, 90] * 10, [0, 0, 0, 1000] + [0] * 9 + [1000] + [0] * 9, [200] * 40],
    ids=["noise", "a long kernel with a wait afterwards", "the slack"],
)
def test_a_slice_that_keeps_to_its_share_is_never_reported(samples: list[int]) -> None:
    """A tenth of a GPU, with NVML's noise, or one kernel of a second in ten seconds."""
    assert set(run(OveruseDetector(100, 10), samples)) == {0}


def test_overuse_ends_well_below_where_it_begins() -> None:
    """Without hysteresis, a pod at the limit would be reported on and off."""
    assert run(OveruseDetector(100, 2), [250, 250, 250, 190, 190, 190, 100, 100]) == [0, 0, 150, 120, 90, 90, 0, 0]


def test_a_pod_that_was_gone_starts_a_new_window() -> None:
    overuses = OveruseDetector(100, 2)
    run(overuses, [900] * 4)
    assert overuses.update(4, []) == ()
    assert overuses.update(5, [used(900)]) == ()


def test_samples_are_weighted_by_their_length_and_a_sample_of_no_length_is_ignored() -> None:
    overuses = OveruseDetector(0, 4)
    assert run(overuses, [0, 0], every_s=3) == [0, 0]
    overuses.update(3, [used(1000)])
    (over,) = overuses.update(4, [used(1000)])
    assert (over.mean_milli, over.over_milli) == (250, 150)
    assert over.sentence == "pod a used 25 % of GPU G over 4 s according to NVML; 10 % are granted"


@pytest.mark.parametrize(
    ("counted", "forged"),
    [((0, 0, 0, 0), True), ((500, 500, 500, 500), False), ((0, 0, 1000, 800), False), ((None, 0, 0, 0), False)],
)
def test_counters_that_say_less_than_nvml_over_the_same_window_are_forged(
    counted: tuple[int | None, ...], forged: bool
) -> None:
    """Within the slack, and where a part of the window is unknown, they prove nothing."""
    overuses = OveruseDetector(100, 4)
    overuses.update(0, [used(500)])
    for place, milli in enumerate(counted):
        found = overuses.update(place + 1, [msgspec.structs.replace(used(500), counted_milli=milli)])
    assert [over.is_forged for over in found] == [forged]


def test_what_a_pod_counts_is_known_if_all_of_its_containers_counters_are() -> None:
    slices = [slice_of("a", "one", 100), slice_of("a", "two", 100)]
    one, two = (slice_.key for slice_ in slices)
    for known, counted in (({(one, "G"): 30, (two, "G"): 40}, 70), ({(one, "G"): 30}, None)):
        assert [usage.counted_milli for usage in pod_usage({}, slices, known)] == [counted]


def slice_of(uid: str, container: str, milli: int, *, opportunistic: bool = False) -> Slice:
    parts = (Part(uuid="G", memory_mib=1, compute_milli=milli),)
    return Slice(uid=uid, container=container, strategy="interposer", parts=parts, opportunistic=opportunistic)


def test_containers_of_a_pod_are_counted_together_and_a_pod_without_samples_was_idle() -> None:
    found = pod_usage({("a", "G"): 700}, [slice_of("a", "c", 200), slice_of("a", "d", 300), slice_of("b", "c", 100)])
    assert [(one.uid, one.used_milli, one.share_milli) for one in found] == [("a", 700, 500), ("b", 0, 100)]


def test_pods_without_a_share_of_their_own_are_omitted() -> None:
    mixed = [slice_of("a", "c", 200), slice_of("a", "d", 0)]
    assert (
        pod_usage({("a", "G"): 900}, [*mixed, slice_of("b", "c", 300, opportunistic=True), slice_of("c", "c", 1000)])
        == []
    )


def test_a_throttle_quota_is_the_share_of_every_cycle() -> None:
    quota = ThrottleQuota(share_milli=100, pids=frozenset({1}))
    step = CYCLE_NS // 100
    assert sum(not quota.waits(7 * CYCLE_NS + place * step) for place in range(100)) == 10


def test_a_throttle_quota_stays_until_the_processes_have_ended() -> None:
    over = Overuse(used=used(900), mean_milli=900, window_s=10)
    first = update_quotas({}, [over], {("a", "G"): frozenset({1, 2})})
    assert first == {("a", "G"): ThrottleQuota(share_milli=100, pids=frozenset({1, 2}))}
    second = update_quotas(first, [], {("a", "G"): frozenset({2, 3})})
    assert second["a", "G"].pids == {2, 3}
    assert update_quotas(second, [], {}) == {}


def test_an_action_needs_more_samples_than_a_report() -> None:
    overuses = OveruseDetector(100, 2)
    used = [Usage(uid="a", uuid="G", containers=(), used_milli=500, share_milli=100)]
    found = [[over.is_proven for over in overuses.update(float(second), used)] for second in range(7)]
    assert found == [[], [], [False], [False], [True], [True], [True]]
