"""What the tests of the planner share: disruption budgets and the annotations of gangs."""

from __future__ import annotations

from shared.model.affinity import LabelSelector
from shared.model.kube_object import Meta
from shared.model.objects import DisruptionBudgetSpec, DisruptionBudgetStatus, PodDisruptionBudget
from tests.support import build


def budget(allowed: int, **labels: str) -> PodDisruptionBudget:
    meta = Meta(
        name=f"b-{'-'.join(labels.values())}",
        namespace="team",
        uid=f"uid-{labels}",
        resource_version=build.next_version(),
    )
    return PodDisruptionBudget(
        metadata=meta,
        spec=DisruptionBudgetSpec(selector=LabelSelector(match_labels=labels)),
        status=DisruptionBudgetStatus(disruptions_allowed=allowed),
    )


def gang(name: str, size: int, least: int = 0) -> dict[str, dict[str, str]]:
    notes = {"kerf.dev/gang": name, "kerf.dev/gang-size": str(size)}
    return {"annotations": notes | ({"kerf.dev/gang-min": str(least)} if least else {})}
