"""What the tests of gangs share: members, racks, and what was decided."""

from __future__ import annotations

from typing import Any

from services.placement import messages as m
from services.placement.explain.steps import finish
from services.placement.queries import questions
from shared.contracts.explain import PodExplanation
from shared.contracts.log import DecisionBatch
from shared.contracts.queries import WhyQuery
from shared.model.objects import Pod
from tests.support import build
from tests.support.harness.placement import Placement

RACK = "topology.kubernetes.io/rack"


def member(
    name: str, *, gang: str = "g", size: int = 2, gpus: int = 1, notes: dict[str, str] | None = None, **rest: Any
) -> Pod:
    annotations = {"kerf.dev/gang": gang, "kerf.dev/gang-size": str(size)} | {
        f"kerf.dev/gang-{k}": v for k, v in (notes or {}).items()
    }
    make = build.gpu_pod if gpus else build.pod
    return make(name, annotations=annotations, **({"gpus": gpus} if gpus else {}), **rest)


def members(count: int, *, prefix: str = "p", **rest: Any) -> list[Pod]:
    return [member(f"{prefix}{i}", **{"size": count, **rest}) for i in range(count)]


def why(placement: Placement, name: str) -> PodExplanation:
    answer = finish(questions.why(placement.core, WhyQuery(namespace="team", name=name), placement.now, placement.now))
    assert answer.explanation is not None
    return answer.explanation


def decided(placement: Placement) -> list[list[str]]:
    """Names by record of the log, in order; without records that a renewed term repeats."""
    return [[d.name for d in record.decisions] for _, record in placement.log if isinstance(record, DecisionBatch)]


def racks(placement: Placement, **nodes: str) -> Placement:
    """Nodes of four GPUs each, by their rack."""
    for name, rack in nodes.items():
        placement.facts(build.node(name, labels={RACK: rack} if rack else {}))
        placement.send(m.InventorySeen(build.inventory(name, gpus=4)))
    return placement
