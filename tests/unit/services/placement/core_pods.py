"""What the tests of the core share: half a GPU, and a pod that is seen bound."""

from __future__ import annotations

from tests.support.harness.placement import Placement

HALF = {"memory": "40Gi"}


def show_bound(placement: Placement, pod: object) -> object:
    placement.facts(pod)
    return placement.bind(pod)  # type: ignore[arg-type]
