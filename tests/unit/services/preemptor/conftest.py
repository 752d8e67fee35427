"""What the tests of the preemptor share."""

from __future__ import annotations

import pytest

from tests.support.harness.preemptor import Preemptor


@pytest.fixture
def preemptor() -> Preemptor:
    """Two nodes of one GPU, a pod on each, and a pending pod of higher priority."""
    made = Preemptor("a", "b", gpus=1)
    made.run("cheap", "a", 0, ran_s=10)
    made.run("dear", "b", 0, ran_s=1_000)
    made.wait("high")
    return made
