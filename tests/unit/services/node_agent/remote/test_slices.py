"""Names and secrets of remote slices: the same on both nodes, another one for each grant."""

from __future__ import annotations

import pytest

from services.node_agent.remote.slices import slice_name, slice_secret

KEY = b"k" * 32


def test_each_grant_and_container_has_a_name_and_a_secret_of_its_own() -> None:
    names = {slice_name(*ids) for ids in (("u", "g", "a"), ("u", "g", "b"), ("u", "h", "a"), ("v", "g", "a"))}
    assert len(names) == 4
    assert len({slice_secret(KEY, name) for name in names}) == 4
    assert slice_name("u", "ga", "b") != slice_name("u", "g", "ab")


def test_both_nodes_derive_the_same_and_another_installation_another() -> None:
    name = slice_name("u", "g", "a")
    assert slice_secret(KEY, name) == slice_secret(KEY, name)
    assert slice_secret(KEY, name) != slice_secret(b"l" * 32, name)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 32"):
        slice_secret(b"short", "name")
