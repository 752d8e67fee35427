"""Which pods are idle."""

from __future__ import annotations

import pytest

from services.node_agent.devices.usage import GpuProcesses, Process
from services.node_agent.idle import IdlePods, Kernels, Seen, kernels_of


class Looks:
    def __init__(self, after_s: float = 10.0) -> None:
        self.pods = IdlePods(after_s)

    def __call__(self, now: float, *seen: Seen) -> tuple[dict[str, float], dict[str, float]]:
        return self.pods.look(seen, now)


def pod(work: object = 1, *, suspended: bool = False, wants: bool = False, kernels: bool | None = False) -> Seen:
    return Seen(grant_id="g", suspended=suspended, work=work, wants=wants, kernels=kernels)


def test_a_pod_is_idle_when_nothing_has_changed_for_the_time() -> None:
    look = Looks()
    assert look(100, pod()) == ({}, {})
    assert look(109, pod()) == ({}, {})
    assert look(110, pod()) == ({"g": 100}, {})
    assert look(150, pod()) == ({"g": 100}, {})
    assert look(151, pod(2)) == ({}, {})
    assert look(161, pod(2)) == ({"g": 151}, {})


@pytest.mark.parametrize("seen", [pod(wants=True), pod(kernels=True), pod(kernels=None), pod(None), pod(2)], ids=str)
def test_work_and_what_cannot_be_read_end_idleness(seen: Seen) -> None:
    look = Looks()
    look(0, pod())
    assert look(20, pod()) == ({"g": 0}, {})
    assert look(21, seen) == ({}, {})


def test_a_pod_without_counters_is_never_idle() -> None:
    look = Looks()
    assert [look(at, pod(None)) for at in (0, 20, 40)] == [({}, {})] * 3


def test_a_suspended_idle_pod_stays_idle_until_it_wants_its_gpu_and_is_not_idle_when_it_has_it() -> None:
    look = Looks()
    look(0, pod())
    look(20, pod())
    assert look(21, pod(None, suspended=True, kernels=None)) == ({"g": 0}, {})
    assert look(500, pod(None, suspended=True)) == ({"g": 0}, {})
    assert look(501, pod(None, suspended=True, wants=True)) == ({}, {"g": 501})
    assert look(520, pod(None, suspended=True)) == ({}, {"g": 501}), "it has wanted it"
    assert look.pods.waited_s == []
    assert look(530, pod(7)) == ({}, {})
    assert look.pods.waited_s == [29]
    assert look(539, pod(7)) == ({}, {})
    assert look(540, pod(7)) == ({"g": 530}, {})


def test_a_pod_that_was_not_idle_when_it_was_suspended_waits_for_its_turn() -> None:
    look = Looks()
    look(0, pod())
    assert look(5, pod(None, suspended=True)) == ({}, {})
    assert look(500, pod(None, suspended=True)) == ({}, {})
    assert look(501, pod(None, suspended=True, wants=True)) == ({}, {})
    assert look(510, pod()) == ({}, {})
    assert look.pods.waited_s == []


def test_an_agent_that_starts_again_knows_of_no_suspended_pod_that_it_is_idle() -> None:
    look = Looks()
    assert look(0, pod(None, suspended=True)) == ({}, {})
    assert look(500, pod(None, suspended=True)) == ({}, {})


def test_a_clock_that_goes_back_makes_nobody_idle() -> None:
    look = Looks()
    look(100, pod())
    assert look(50, pod()) == ({}, {})
    assert look(59, pod()) == ({}, {})
    assert look(60, pod()) == ({"g": 50}, {})


def gpu(sm_milli: int | None, *processes: tuple[int, int | None], uuid: str = "a") -> GpuProcesses:
    found = tuple(Process(pid=pid, mib=1, sm_milli=milli) for pid, milli in processes)
    return GpuProcesses(uuid=uuid, used_mib=1, sm_milli=sm_milli, processes=found)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([gpu(0, (1, None))], False),
        ([gpu(900, (1, 900))], True),
        ([gpu(900, (1, None), (2, 900))], False),  # another pod's
        ([gpu(900, (1, None))], None),  # somebody's, and NVML does not say whose
        ([gpu(None, (1, None))], None),
        ([], None),
    ],
)
def test_what_nvml_tells_of_kernels(found: list[GpuProcesses], expected: bool | None) -> None:
    owners = {1: "mine", 2: "other"}
    assert kernels_of("mine", ["a"], found, owners.get) is expected


def test_all_gpus_of_a_pod_count() -> None:
    found = [gpu(0, (1, None)), gpu(500, (1, 500), uuid="b")]
    assert kernels_of("mine", ["a", "b"], found, {1: "mine"}.get) is True
    assert kernels_of("mine", ["a", "c"], found, {1: "mine"}.get) is None


def test_kernels_between_two_questions_are_not_forgotten() -> None:
    """With `usage_s` 1 there are five samples between two looks."""
    owners = {1: "mine", 2: "other"}
    kernels = Kernels()
    for found in (gpu(0, (1, None)), gpu(900, (1, 900)), gpu(0, (1, None))):
        kernels.saw((found,), {"mine", "other"}, owners.get)
    assert kernels.of("other", ["a"], owners.get) is False
    assert kernels.of("mine", ["a"], owners.get) is True
    assert kernels.of("mine", ["a"], owners.get) is False
    kernels.saw((gpu(900, (1, 900)),), {"mine"}, owners.get)
    assert [kernels.of("mine", ["a"], owners.get) for _ in range(3)] == [True] * 3, "the last sample stays"


def test_kernels_on_another_gpu_are_not_the_ones_asked_for_and_a_pod_that_has_gone_is_forgotten() -> None:
    owners = {1: "mine"}
    kernels = Kernels()
    kernels.saw((gpu(900, (1, 900)), gpu(0, uuid="b")), {"mine"}, owners.get)
    assert kernels.of("mine", ["b"], owners.get) is False
    kernels.saw((gpu(0), gpu(0, uuid="b")), set(), owners.get)
    assert kernels.of("mine", ["a"], owners.get) is False
