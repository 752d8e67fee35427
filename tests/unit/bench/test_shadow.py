"""The recordings of `bench.shadow`, and what is found in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.shadow.__main__ import DATA, figures
from bench.shadow.scenario import FORMS, write


@pytest.mark.parametrize("peer", sorted(FORMS))
def test_every_grant_is_read_none_is_wrong_and_each_twin_is_found(peer: str) -> None:
    found = figures(peer)
    assert (found["grants_read"], found["grants_wrong"], found["unreadable"], found["gpus"]) == (28, 0, 0, 4)
    assert found["doubled_found"] == found["doubled_made"] == 4


@pytest.mark.parametrize("peer", sorted(FORMS))
def test_the_recording_is_what_the_scenario_makes(peer: str, tmp_path: Path) -> None:
    write(peer, tmp_path / "made.jsonl")
    assert (tmp_path / "made.jsonl").read_bytes() == (DATA / f"{peer}.jsonl").read_bytes()
