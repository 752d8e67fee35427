"""What happens to pods that hold more GPU memory than their policed slices."""

from __future__ import annotations

import pytest

from services.node_agent.strategies.escapes import PodMemory
from services.node_agent.strategies.policing import (
    FORGET_S,
    MAX_FROZEN_S,
    Actions,
    EvictionBackoff,
    Suspect,
    judge,
)

G, H = "GPU-1", "GPU-2"
SLACK_MIB = 256


def held(seen: int, *, granted: int = 1000, uid: str = "a", uuid: str = G, counted: int = 0) -> PodMemory:
    return PodMemory(
        uid=uid, uuid=uuid, containers=((uid, "c"),), seen_mib=seen, counted_mib=counted, granted_mib=granted
    )


BEYOND, WITHIN = held(1257), held(1256)


class Court:
    """Judges one sample a second."""

    def __init__(self) -> None:
        self.suspects: dict[str, Suspect] = {}
        self.now_s = 0.0

    def sample(
        self,
        *found: PodMemory,
        answering: tuple[str, ...] = (G, H),
        pods: tuple[str, ...] = ("a", "b"),
        after_s: float = 1.0,
    ) -> Actions:
        self.now_s += after_s
        self.suspects, actions = judge(
            self.suspects, found, pods=pods, answering=answering, slack_mib=SLACK_MIB, now_s=self.now_s
        )
        return actions


@pytest.fixture
def court() -> Court:
    return Court()


def did(actions: Actions) -> tuple[int, list[str], list[str], list[str]]:
    """How many are beyond their slices, and which are frozen, thawed, ended."""
    return (
        len(actions.excesses),
        [one.held.uid for one in actions.freeze],
        list(actions.thaw),
        [one.held.uid for one in actions.end],
    )


def test_the_first_sample_reports_the_second_freezes_and_the_third_ends(court: Court) -> None:
    assert [did(court.sample(BEYOND)) for _ in range(3)] == [
        (1, [], [], []),
        (1, ["a"], [], []),
        (1, [], [], ["a"]),
    ]


def test_what_counts_is_the_grant_and_the_slack_and_not_the_control_blocks(court: Court) -> None:
    static = held(1256, counted=0)
    assert [did(court.sample(static)) for _ in range(5)] == [(0, [], [], [])] * 5
    assert court.suspects == {}


def test_memory_on_a_gpu_that_was_not_granted_counts_from_the_slack_on(court: Court) -> None:
    assert did(court.sample(held(257, granted=0, uuid=H)))[0] == 1


def test_the_sentence_names_gpu_amounts_and_seconds(court: Court) -> None:
    court.sample(BEYOND)
    court.sample(BEYOND, after_s=0.9)
    (excess,) = court.sample(BEYOND, after_s=0.7).end
    assert excess.sentence == (
        "pod a has held more GPU memory than its slice for 1.6 s: 1257 MiB on GPU GPU-1 according to NVML; 1000 MiB "
        "are granted, and 256 MiB beyond that are tolerated"
    )
    assert excess.over_mib == 1


def test_of_several_gpus_the_worst_is_told(court: Court) -> None:
    (excess,) = court.sample(BEYOND, held(1300, uuid=H)).excesses
    assert (excess.held.uuid, excess.over_mib) == (H, 44)


def test_a_frozen_pod_that_the_next_sample_finds_within_its_grant_is_thawed(court: Court) -> None:
    for _ in range(2):
        court.sample(BEYOND)
    assert did(court.sample(WITHIN)) == (0, [], ["a"], [])
    assert did(court.sample(WITHIN)) == (0, [], [], [])


def test_a_frozen_pod_whose_processes_are_gone_is_thawed(court: Court) -> None:
    for _ in range(2):
        court.sample(BEYOND)
    assert did(court.sample()) == (0, [], ["a"], [])


def test_a_pod_that_frees_and_takes_again_is_frozen_at_once_and_begins_anew_after_a_minute(court: Court) -> None:
    court.sample(BEYOND)
    court.sample(WITHIN)
    (excess,) = court.sample(BEYOND).freeze
    assert excess.seconds == 0, "since the last sample within its grant"
    court.sample(WITHIN)
    assert did(court.sample(BEYOND, after_s=FORGET_S - 2))[1] == ["a"]
    court.sample(WITHIN)
    court.sample(WITHIN, after_s=FORGET_S)
    assert did(court.sample(BEYOND)) == (1, [], [], [])


def test_a_pod_that_was_ended_is_ended_again_at_the_first_sample(court: Court) -> None:
    for _ in range(3):
        court.sample(BEYOND)
    assert did(court.sample(BEYOND)) == (1, [], [], ["a"]), "a process hangs in the driver"
    assert did(court.sample(WITHIN)) == (0, [], [], []), "it was thawed with the signal"
    assert did(court.sample(BEYOND)) == (1, [], [], ["a"]), "its container was started again"


def test_a_gpu_that_does_not_answer_proves_nothing(court: Court) -> None:
    court.sample(BEYOND)
    assert did(court.sample(answering=(H,))) == (0, [], [], [])
    assert did(court.sample(BEYOND))[1] == ["a"]
    assert did(court.sample(answering=())) == (0, [], [], []), "it stays frozen"
    assert did(court.sample(BEYOND))[3] == ["a"]


def test_a_pod_does_not_stay_frozen_because_its_gpu_does_not_answer(court: Court) -> None:
    for _ in range(2):
        court.sample(BEYOND)
    assert did(court.sample(answering=(), after_s=MAX_FROZEN_S - 1)) == (0, [], [], [])
    assert did(court.sample(answering=())) == (0, [], ["a"], [])
    assert did(court.sample(BEYOND))[1] == ["a"], "it is suspect all the same"


def test_a_frozen_pod_that_has_no_policed_slice_any_more_is_thawed_and_forgotten(court: Court) -> None:
    for _ in range(2):
        court.sample(BEYOND)
    assert did(court.sample(BEYOND, pods=("b",))) == (0, [], ["a"], [])
    assert court.suspects == {}


def test_pods_are_judged_apart(court: Court) -> None:
    court.sample(BEYOND)
    assert did(court.sample(BEYOND, held(2000, uid="b")))[1] == ["a"]
    assert did(court.sample(WITHIN, held(2000, uid="b"))) == (1, ["b"], ["a"], [])


def test_a_pod_without_policed_slices_is_left_alone(court: Court) -> None:
    assert [did(court.sample(held(5000, uid="other"))) for _ in range(4)] == [(0, [], [], [])] * 4


def test_an_eviction_is_asked_for_at_growing_intervals() -> None:
    backoff = EvictionBackoff()
    asked = [at_s for at_s in range(1200) if backoff.due("a", at_s)]
    assert asked == [0, 30, 90, 210, 450, 750, 1050]


def test_the_back_off_of_a_pod_ends_with_the_pod() -> None:
    backoff = EvictionBackoff()
    assert backoff.due("a", 0)
    backoff.keep_only({"b"})
    assert backoff.due("a", 1)
