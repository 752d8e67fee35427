"""Memory of others: charged to the process that imports it or keeps it alive, while it does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interposer.node import MIB, Container

LIMIT = 100 * MIB
PIECE = 8 * MIB
FULL = LIMIT // PIECE
Limited = Callable[[int], Container]


@pytest.mark.parametrize("way", ["external", "reset", "pool"])
def test_memory_of_others_is_charged_while_it_is_imported(limited: Limited, way: str) -> None:
    """An allocation that its owner has freed is the importer's alone; while both have it, both are charged."""
    count, most, charged, after = limited(LIMIT).run("imports", way, str(PIECE))
    assert FULL - 1 <= count <= FULL
    assert most <= charged <= LIMIT
    assert after == 0


@pytest.mark.parametrize("way", ["bind", "bind_v2"])
def test_memory_that_something_binds_is_charged_until_it_is_unbound(limited: Limited, way: str) -> None:
    count, most, charged, after = limited(LIMIT).run("imports", way, str(PIECE))
    assert (count, most, charged, after) == (FULL, FULL * PIECE, FULL * PIECE, 0)


def test_memory_of_a_logical_endpoint_stays_charged(limited: Limited) -> None:
    count, most, charged, after = limited(LIMIT).run("imports", "endpoint", str(PIECE))
    assert (count, most, charged, after) == (FULL, FULL * PIECE, FULL * PIECE, FULL * PIECE)


def test_memory_that_is_opened_again_is_charged_once_until_it_is_closed_as_often(limited: Limited) -> None:
    """The driver counts the openings and returns the same address."""
    assert limited(LIMIT).run("imports", "again", str(PIECE)) == [PIECE] * 3 + [PIECE, PIECE, 0]
