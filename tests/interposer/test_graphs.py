"""Memory of graphs: charged while executable graphs may take it or the driver keeps it, and free afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interposer.node import MIB, Container

LIMIT = 100 * MIB
PIECE = 8 * MIB
FULL = LIMIT // PIECE
OUT_OF_MEMORY = 2
Limited = Callable[[int], Container]


@pytest.mark.parametrize("way", ["nodes", "capture", "child"])
@pytest.mark.parametrize("from_process", [{}, {"KERF_TEST_WAY": "threads"}, {"KERF_TEST_WAY": "names"}])
def test_memory_of_graphs_is_charged_when_they_are_instantiated(
    limited: Limited, way: str, from_process: dict[str, str]
) -> None:
    """However the allocation came into the graph, and however the program found the calls."""
    most, hidden, count, charged, error = limited(LIMIT).run("graphs", way, str(PIECE), **from_process)
    assert (most, hidden, count, error) == (FULL * PIECE, 0, FULL, OUT_OF_MEMORY)
    assert charged == FULL * PIECE


def test_a_graph_that_never_ran_is_charged_too(limited: Limited) -> None:
    """Its launch takes the memory, and is not checked."""
    _, _, count, charged, error = limited(LIMIT).run("graphs", "unrun", str(PIECE))
    assert (count, charged, error) == (FULL, FULL * PIECE, OUT_OF_MEMORY)


def test_small_allocations_of_graphs_are_charged_a_granule_each(limited: Limited) -> None:
    _, hidden, count, _, _ = limited(10 * MIB).run("graphs", "nodes", "512")
    assert (hidden, count) == (0, 5)


def test_a_program_may_capture_an_allocation_in_every_step(limited: Limited) -> None:
    """Sixty times a third of the slice, each destroyed before the next: the driver takes the memory once."""
    most, hidden, steps, charged, error = limited(LIMIT).run("graphs", "steps", str(32 * MIB))
    assert (most, hidden, steps, error) == (32 * MIB, 0, 60, 0)
    assert charged == 32 * MIB, "the driver keeps it for the next graph"


@pytest.mark.parametrize("way", ["destroyed", "trim"])
def test_what_destroyed_graphs_held_is_available_again(limited: Limited, way: str) -> None:
    """Also without a trim by the program, which rarely knows that the driver keeps it."""
    most, hidden, plain, charged, error = limited(LIMIT).run("graphs", way, str(PIECE))
    assert (most, hidden, plain, error) == (FULL * PIECE, 0, FULL, OUT_OF_MEMORY)
    assert charged == (0 if way == "trim" else FULL * PIECE)


def test_graphs_are_not_charged_any_more_when_their_context_has_ended(limited: Limited) -> None:
    """A program may reset the device without destroying its executable graphs."""
    most, hidden, count, charged, _ = limited(LIMIT).run("graphs", "reset", str(PIECE))
    assert (most, hidden, count, charged) == (0, 0, FULL, 0)


def test_what_a_graph_takes_after_the_end_of_its_context_is_charged(limited: Limited) -> None:
    """If the driver still runs it."""
    most, hidden, _, charged, _ = limited(LIMIT).run("graphs", "survivor", str(PIECE))
    assert (most, hidden, charged) == (PIECE, 0, PIECE)


def test_queries_do_not_ask_the_driver_for_the_memory_of_graphs_each_time(limited: Limited) -> None:
    """Programs query thousands of times per second: it is asked at most once per millisecond, here of no time."""
    (asked,) = limited(LIMIT).run("graphs", "queries", str(PIECE))
    assert asked <= 2


def test_a_query_does_not_wait_for_another_threads_allocation(limited: Limited) -> None:
    """The driver may take long for it."""
    assert limited(LIMIT).run("graphs", "busy", str(PIECE)) == [1]
