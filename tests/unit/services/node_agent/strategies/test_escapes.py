"""NVML's memory figures compared with the control blocks'."""

from __future__ import annotations

from services.node_agent.strategies.escapes import ACT_SAMPLES, EscapeDetector, HiddenMemory, PodMemory, pod_memory
from services.node_agent.strategies.slices import Key


def control_block(
    name: str, counted: int, granted: int = 1000, container: str = "c", gpu: str = "G"
) -> tuple[Key, str, int, int]:
    return (name, container), gpu, counted, granted


def test_memory_within_the_counted_amount_and_the_slack_is_no_escape() -> None:
    escapes = EscapeDetector(slack_mib=100)
    for _ in range(3):
        assert escapes.update(pod_memory({("a", "G"): 600}, [control_block("a", 500)])) == ()


def test_hidden_memory_is_an_escape_after_two_samples() -> None:
    escapes = EscapeDetector(slack_mib=100)
    held = pod_memory({("a", "G"): 700}, [control_block("a", 0)])
    assert escapes.update(held) == ()
    (found,) = escapes.update(held)
    assert (found.hidden_mib, found.over_mib) == (600, 0)
    assert "700 MiB on GPU G according to NVML; the interposer counted 0 MiB, 1000 MiB are granted" in found.sentence


def test_an_escape_that_was_gone_in_between_is_counted_from_the_start() -> None:
    escapes = EscapeDetector(slack_mib=0)
    held = pod_memory({("a", "G"): 700}, [control_block("a", 0)])
    escapes.update(held)
    escapes.update([])
    assert escapes.update(held) == ()


def test_memory_beyond_the_grant_is_an_escape_whatever_the_counters_say() -> None:
    """The container can forge its counters."""
    escapes = EscapeDetector(slack_mib=0)
    held = pod_memory({("a", "G"): 1500}, [control_block("a", 1500)])
    escapes.update(held)
    (found,) = escapes.update(held)
    assert (found.hidden_mib, found.over_mib) == (0, 500)


def test_containers_of_a_pod_are_counted_together() -> None:
    held = pod_memory(
        {("a", "G"): 900, ("b", "G"): 5},
        [control_block("a", 400), control_block("a", 500, container="d"), control_block("a", 7, gpu="H")],
    )
    assert [(h.uid, h.uuid, h.seen_mib, h.counted_mib, h.granted_mib) for h in held] == [("a", "G", 900, 900, 2000)]


def honest(uid: str, hidden_mib: int, processes: int = 1) -> PodMemory:
    """A pod that allocates within its slice; library code and the like is not counted."""
    return PodMemory(
        uid=uid,
        uuid="G",
        containers=((uid, "c"),),
        seen_mib=600 + hidden_mib,
        counted_mib=600,
        granted_mib=1000,
        processes=processes,
    )


def test_the_slack_is_for_each_process() -> None:
    """Four honest workers with the code of their libraries: 400 MiB each that no control block counts."""
    escapes = EscapeDetector(slack_mib=1024)
    for _ in range(20):
        assert escapes.update([honest("a", 1600, processes=4)]) == ()
    for _ in range(2):
        found = escapes.update([honest("a", 4097, processes=4)])
    assert [escape.hidden_mib for escape in found] == [1]
    assert "4096 MiB for its 4 processes are tolerated" in found[0].sentence


def test_the_slack_is_for_a_bounded_number_of_processes() -> None:
    escapes = EscapeDetector(slack_mib=100)
    for _ in range(2):
        found = escapes.update([honest("a", 2000, processes=200)])
    assert [escape.hidden_mib for escape in found] == [400]


def test_an_action_needs_more_samples_than_a_report() -> None:
    escapes = EscapeDetector(slack_mib=100)
    seen = [[escape.is_proven for escape in escapes.update([honest("a", 300)])] for _ in range(ACT_SAMPLES + 1)]
    assert seen == [[], *[[False]] * (ACT_SAMPLES - 2), [True], [True]]
    escapes.update([])
    assert not any(escape.is_proven for _ in range(2) for escape in escapes.update([honest("a", 300)]))


def test_what_honest_processes_hide_is_learned_from_several_pods() -> None:
    hidden = HiddenMemory(max_mib=1024)
    hidden.update([honest(f"p{i}", 4 * 320, processes=4) for i in range(4)])
    assert hidden.per_process_mib == 1024, "four pods are too few"
    hidden.update([honest("p4", 320)])
    assert hidden.per_process_mib == 400
    hidden.update([honest(f"q{i}", 0) for i in range(100)])
    assert hidden.per_process_mib == 256, "never less than the driver itself takes"


def test_a_pod_that_hides_more_than_others_raises_the_slack_of_none() -> None:
    hidden = HiddenMemory(max_mib=1024)
    hidden.update([*[honest(f"p{i}", 300) for i in range(19)], honest("bad", 1000)])
    assert hidden.per_process_mib == 375


def test_the_slack_is_never_more_than_the_setting() -> None:
    hidden = HiddenMemory(max_mib=1024)
    hidden.update([honest(f"p{i}", 5000) for i in range(10)])
    assert hidden.per_process_mib == 1024
    without = HiddenMemory(max_mib=0)
    without.update([honest(f"p{i}", 5000) for i in range(10)])
    assert without.per_process_mib == 0


def test_nothing_is_learned_from_a_pod_that_counts_nothing() -> None:
    """It bypasses the interposer altogether."""
    hidden = HiddenMemory(max_mib=1024)
    hidden.update(pod_memory({(f"p{i}", "G"): 300 for i in range(9)}, [control_block(f"p{i}", 0) for i in range(9)]))
    assert hidden.per_process_mib == 1024


def test_beyond_the_learned_slack_a_pod_is_reported_and_acted_upon_only_beyond_the_setting() -> None:
    """An honest pod that differs from its neighbours: a large framework among small programs."""
    escapes = EscapeDetector(slack_mib=1024)
    small = [honest(f"p{i}", 50) for i in range(20)]
    for _ in range(ACT_SAMPLES + 5):
        found = escapes.update([*small, honest("large", 600), honest("bad", 1100)])
    assert [(escape.held.uid, escape.hidden_mib, escape.is_proven) for escape in found] == [
        ("bad", 1100 - 256, True),
        ("large", 600 - 256, False),
    ]


def test_the_processes_of_a_pod_are_known_from_nvml() -> None:
    (held,) = pod_memory({("a", "G"): 900}, [control_block("a", 400)], {("a", "G"): 3})
    assert held.processes == 3
