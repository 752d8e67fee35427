"""NVML's memory figures compared with the control blocks'."""

from __future__ import annotations

from services.node_agent.strategies.escapes import EscapeDetector, pod_memory
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
