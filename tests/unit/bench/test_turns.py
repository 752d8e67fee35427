"""Whose turn it is in the bench of turns, on drawn nodes: one runs on each GPU, and no memory is overbooked."""

from __future__ import annotations

import random

import pytest

from bench.turns.turns import Node, Program, due
from shared.turns.rules import TurnRules

RULES = TurnRules(level_bounds_gpu_s=(1, 4), min_turn_s=1, max_wait_s=30)
NODE = Node(gpus=2, gpu_mib=100, host_mib=120, rules=RULES)


def program(name: str, memory_mib: int = 60, **state: object) -> Program:
    return Program(name=name, memory_mib=memory_mib, kernels=1, seed=0, **state)  # type: ignore[arg-type]


def test_an_idle_gpu_is_given_before_a_turn_ends() -> None:
    runs = program("a", place="runs", gpu=0, since_s=0.0)
    (turn,) = due(NODE, [runs, program("b")], (), 100.0)
    assert (turn.gpu, turn.next, turn.pause, turn.to_host, turn.kind) == (1, "b", (), (), "pause")


def test_the_memory_of_the_one_that_yields_stays_where_it_fits_beside() -> None:
    node = Node(gpus=1, gpu_mib=100, host_mib=120, rules=RULES)
    runs = program("a", 40, place="runs", gpu=0, since_s=0.0)
    (turn,) = due(node, [runs, program("b", since_s=0.0)], (), 5.0)
    assert (turn.pause, turn.to_host, turn.kind) == (("a",), (), "pause")
    (turn,) = due(node, [runs, program("b", 61, since_s=0.0)], (), 5.0)
    assert (turn.pause, turn.to_host, turn.kind) == ((), ("a",), "checkpoint")


def test_a_program_whose_first_turn_is_decided_gets_no_second_gpu() -> None:
    assert due(NODE, [program("a", gpu=0)], (0,), 1.0) == []


def test_nothing_yields_before_its_least_turn_or_when_the_host_is_full() -> None:
    node = Node(gpus=1, gpu_mib=100, host_mib=59, rules=RULES)
    runs = program("a", place="runs", gpu=0, since_s=0.0)
    assert due(node, [runs, program("b")], (), 0.5) == []
    assert due(node, [runs, program("b")], (), 5.0) == []


@pytest.mark.parametrize("seed", range(20))
def test_on_drawn_nodes_every_program_ends_and_no_memory_is_overbooked(seed: int) -> None:
    draw = random.Random(seed)
    programs = [program(f"p{number}", draw.randrange(10, 60)) for number in range(20)]
    by_name = {each.name: each for each in programs}
    left_s = {each.name: draw.choice((1, 2, 5, 20)) for each in programs}
    now = 0.0
    while any(each.place != "done" for each in programs):
        now += 1.0
        assert now < 500, "a program starves"
        for each in programs:
            if each.place == "runs":
                left_s[each.name] -= 1
                if left_s[each.name] <= 0:
                    each.move("done", now)
        for turn in due(NODE, programs, (), now):
            for name in turn.to_host:
                by_name[name].move("host", now)
            for name in turn.pause:
                by_name[name].move("paused", now)
            by_name[turn.next].gpu = turn.gpu
            by_name[turn.next].move("runs", now)
        for gpu in range(NODE.gpus):
            there = [each for each in programs if each.gpu == gpu and each.place in ("runs", "paused")]
            assert sum(each.memory_mib for each in there) <= NODE.gpu_mib
            assert sum(each.place == "runs" for each in there) <= 1
        assert sum(each.memory_mib for each in programs if each.place == "host") <= NODE.host_mib
