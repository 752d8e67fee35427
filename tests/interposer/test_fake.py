"""The fake driver itself: the behaviour on which the other tests rely."""

from __future__ import annotations

from pathlib import Path

from tests.interposer.node import MIB, Node, numbers, until


def test_two_processes_that_both_have_work_are_time_sliced_evenly(built: Path, tmp_path: Path) -> None:
    node = Node(built, tmp_path / "node", clients=2)
    programs = [
        node.bare("share", "saturate", kernel, "3", KERF_FAKE_CUDA_CLIENT=str(i))
        for i, kernel in enumerate(("300000", "5000000"))
    ]
    for program in programs:
        assert all(abs(got - 500_000_000) < 10_000_000 for got in numbers(program))


def test_the_change_to_another_process_takes_time(built: Path, tmp_path: Path) -> None:
    """Of each 2.2 ms a program gets 2, every second time."""
    node = Node(built, tmp_path / "node", clients=2, switch_ns=200_000)
    programs = [node.bare("share", "saturate", "300000", "3", KERF_FAKE_CUDA_CLIENT=str(i)) for i in range(2)]
    for program in programs:
        assert all(abs(got - 1e9 / 2 / 1.1) < 10_000_000 for got in numbers(program))


def test_a_process_alone_gets_the_whole_device(built: Path, tmp_path: Path) -> None:
    node = Node(built, tmp_path / "node", clients=1)
    assert all(got > 985_000_000 for got in numbers(node.bare("share", "saturate", "1000000", "3")))


def test_virtual_time_continues_when_a_client_is_killed(built: Path, tmp_path: Path) -> None:
    """Its work and its memory disappear with it."""
    node = Node(built, tmp_path / "node")
    victim = node.bare("share", "saturate", "1000000", "1000000", KERF_FAKE_CUDA_CLIENT="0")
    other = node.bare("share", "saturate", "1000000", "20", KERF_FAKE_CUDA_CLIENT="1")
    assert other.stdout is not None
    until((tmp_path / "node" / "world").exists)
    victim.kill()
    victim.communicate()
    assert len(numbers(other)) == 20


def test_a_killed_processs_memory_is_free_again(built: Path, tmp_path: Path) -> None:
    node = Node(built, tmp_path / "node")
    victim = node.bare("crowd", "victim")
    until(lambda: numbers(node.bare("crowd", "look"))[0] > MIB)
    victim.kill()
    victim.communicate()
    assert numbers(node.bare("crowd", "look")) == [0]
