"""By which strategy a whole GPU is given to a pod that takes turns."""

from __future__ import annotations

import pytest

from shared.book.book import Book
from shared.book.states import pod_state
from shared.model import names
from shared.model.strategies import StrategyName
from shared.scheduling.assignment import containers_on
from tests.support import build

SLICES: tuple[StrategyName, ...] = ("exclusive", "time_slice", "interposer", "driver", "mps")


@pytest.mark.parametrize(
    ("turns", "isolation", "offered", "expected"),
    [
        ("allowed", "", SLICES, "interposer"),
        ("allowed", "firm", SLICES, "interposer"),
        ("allowed", "hard", SLICES, "exclusive"),  # slices that keep it cannot be checkpointed
        ("allowed", "", ("exclusive", "driver", "mps"), "exclusive"),
        ("never", "", SLICES, "exclusive"),
        ("", "", SLICES, "exclusive"),
    ],
)
def test_whole_gpus_of_a_pod_that_takes_turns_are_slices_that_can_be_suspended(
    turns: str, isolation: str, offered: tuple[StrategyName, ...], expected: str
) -> None:
    book = Book()
    book.apply_snapshot(build.put(build.node("n")))
    book.put_inventory(build.inventory("n", gpus=2, strategies=offered))
    book.set_agent_trouble("n", "")
    notes = {names.ANNOTATION_TURNS: turns, names.ANNOTATION_ISOLATION: isolation}
    pod = build.pod(limits={"kerf.dev/gpu": "2"}, annotations={key: text for key, text in notes.items() if text})
    found = containers_on(pod_state(pod), book.nodes["n"])
    assert found is not None
    assert found["c"].strategy == expected
    total_mib = book.nodes["n"].gpus[0].total_mib
    assert [(share.memory_mib, share.compute_milli) for share in found["c"].gpus] == [(total_mib, 1000)] * 2
