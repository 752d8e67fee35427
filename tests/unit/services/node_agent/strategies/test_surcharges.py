"""What a container loses because NVML sees more of it than its control block says."""

from __future__ import annotations

from typing import Any

from services.node_agent.strategies.control_block import Surcharge
from services.node_agent.strategies.escapes import PodMemory
from services.node_agent.strategies.overuse import Overuse, Usage
from services.node_agent.strategies.slices import Part, Slice
from services.node_agent.strategies.surcharges import Surcharger
from shared.model.units import MIB

G = "GPU-00000000-0000-0000-0000-000000000001"
A = Slice(uid="a", container="c", strategy="interposer", parts=(Part(uuid=G, memory_mib=1000, compute_milli=300),))
B = Slice(uid="b", container="c", strategy="interposer", parts=(Part(uuid=G, memory_mib=1000, compute_milli=0),))


def held(seen: int, counted: int, processes: int = 1) -> PodMemory:
    return PodMemory(
        uid="a",
        uuid=G,
        containers=(A.key,),
        seen_mib=seen,
        counted_mib=counted,
        granted_mib=1000,
        processes=processes,
    )


def after(*samples: PodMemory | None, slack_mib: int = 100, answering: bool = True) -> int:
    """The memory surcharge in MiB after these samples; None: the pod has no process on the GPU."""
    made = Surcharger(slack_mib)
    for sample in samples:
        made.update(0, [] if sample is None else [sample], [], busy={}, answering={G} if sample or answering else set())
    return made.of([A])[A.key][G].memory_bytes // MIB


def test_memory_beyond_the_account_and_the_slack_is_charged_when_three_samples_show_it() -> None:
    hiding, honest = held(900, 500), held(900, 900)
    assert after(hiding) == after(hiding, hiding) == 0, "it may have been allocated and freed between the looks"
    assert after(*[hiding] * 3) == 300
    assert after(hiding, hiding, held(800, 500)) == 200
    assert after(hiding, hiding, honest, hiding, hiding) == 0


def test_an_honest_pod_of_several_processes_has_none() -> None:
    assert after(*[held(900, 500, processes=4)] * 3) == 0


def test_who_forges_a_low_account_loses_what_it_took() -> None:
    assert after(*[held(1000, 0)] * 3, slack_mib=0) == 1000


def test_an_account_above_the_grant_hides_nothing() -> None:
    assert after(*[held(1500, 5000)] * 3, slack_mib=0) == 500


def test_it_ends_with_the_processes_and_not_because_the_gpu_does_not_answer() -> None:
    assert after(*[held(900, 500)] * 3, None) == 0
    assert after(*[held(900, 500)] * 3, None, answering=False) == 300


def test_the_last_figure_of_a_pod_stays_while_its_counters_cannot_be_read() -> None:
    made = Surcharger(100)
    for _ in range(3):
        made.update(0, [held(900, 500)], [], busy={}, answering={G})
    made.update(0, [], [], busy={}, answering={G}, unreadable={"a"})
    assert made.of([A])[A.key][G].memory_bytes == 300 * MIB
    assert made.memory_bytes == {("a", G): 300 * MIB}


def overuse(*, is_proven: bool = True, is_forged: bool = True) -> Overuse:
    used = Usage(uid="a", uuid=G, containers=(A.key,), used_milli=900, share_milli=300)
    return Overuse(used=used, mean_milli=900, window_s=10, is_proven=is_proven, is_forged=is_forged)


def test_each_busy_process_of_a_pod_that_forges_gets_its_part_of_the_share() -> None:
    made, busy = Surcharger(0), {("a", G): 4}
    made.update(0, [], [], busy=busy, answering={G})
    assert made.of([A])[A.key][G] == Surcharge()
    made.update(5, [], [overuse()], busy=busy, answering={G})
    assert made.of([A, B]) == {A.key: {G: Surcharge(private_milli=75)}, B.key: {G: Surcharge()}}
    assert made.forging == {("a", G)}
    made.update(10, [], [], busy={("a", G): 1}, answering={G})
    assert made.of([A])[A.key][G].private_milli == 300
    made.update(15, [], [], busy={}, answering={G})
    assert made.of([A])[A.key][G].private_milli == 300


def test_overuse_that_is_not_proven_or_that_the_counters_show_lowers_no_rate() -> None:
    """An honest pod of several processes would get a part of its share from then on."""
    made, busy = Surcharger(0), {("a", G): 4}
    for over in (overuse(is_proven=False), overuse(is_forged=False)):
        made.update(0, [], [over], busy=busy, answering={G})
        assert made.of([A])[A.key][G].private_milli == 0


def test_the_lower_rate_ends_five_minutes_after_the_last_overuse() -> None:
    made, busy = Surcharger(0), {("a", G): 4}
    rates = []
    for now_s, overuses in ((0, [overuse()]), (200, [overuse(is_proven=False)]), (499, []), (500, [])):
        made.update(now_s, [], overuses, busy=busy, answering={G})
        rates.append(made.of([A])[A.key][G].private_milli)
    assert rates == [75, 75, 75, 0]


P = Slice(uid="a", container="c", strategy="policed", parts=(Part(uuid=G, memory_mib=1000, compute_milli=300),))


def after_policed(*samples: PodMemory | None, **last: Any) -> int:
    made = Surcharger(100)
    for sample in samples[:-1]:
        made.update_policed([] if sample is None else [sample], pods={"a"}, answering={G})
    made.update_policed([] if samples[-1] is None else [samples[-1]], **{"pods": {"a"}, "answering": {G}} | last)
    assert made.memory_bytes.get(("a", G), 0) == made.of([P])[P.key][G].memory_bytes
    return made.of([P])[P.key][G].memory_bytes // MIB


def test_all_that_a_policed_pod_hides_lowers_its_limit_when_two_samples_show_it() -> None:
    hiding = held(900, 500)
    assert (after_policed(hiding), after_policed(hiding, hiding)) == (0, 400), "without a slack"
    assert after_policed(hiding, held(900, 900)) == 0
    assert after_policed(hiding, hiding, None) == 0
    assert after_policed(hiding, hiding, None, answering=set()) == 400
    assert after_policed(hiding, hiding, None, unreadable={"a"}) == 400
    assert after_policed(hiding, hiding, None, answering=set(), pods=set()) == 0


def test_the_samples_of_other_pods_do_not_change_it() -> None:
    made = Surcharger(100)
    for _ in range(2):
        made.update_policed([held(900, 500)], pods={"a"}, answering={G})
    made.update(0, [], [], busy={}, answering={G})
    assert made.of([P])[P.key][G].memory_bytes == 400 * MIB
