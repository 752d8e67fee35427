"""Where Kerf means to differ, by what a case needs: docs/decisions/0070-where-kerf-differs-from-peers.md has the
reasons.

None of these needs is part of a universal case.
"""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]

DIFFERS: dict[str, str] = {
    "node_choice": "another node is as right",
    "device_choice": "another GPU is as right",
    "task_order": "members of a gang are placed largest first",
    "elastic_sharing": "the older job's optional pods go first",
    "legacy_mig": "an instance is asked for by its resource, which is counted",
    "slots": "memory and compute are what a GPU has; a number of sharers is no resource",
    "zero_core_rule": "a pod that reserves no compute may be on a GPU whose compute is reserved",
    "exclusive_by_cores": "reserving all of the compute says nothing on memory; a pod that needs a GPU alone "
    "requests a whole "
    "one",
    "cores_clamp": "more than all of a GPU's compute is refused by name",
    "device_cordon": "a GPU is cordoned by its agent, not by an annotation on the node",
    "group_spread": "pods are kept apart by anti-affinity and topology spread",
}
"""By need: what Kerf does instead."""


_LEAST_DESTROYED = "the job whose end destroys the least ends, not the newest"
_NEEDED_STAY = "no member that its gang needs is migrated (0166)"

DIFFERS_IN: dict[str, str] = {
    "KAI/cycle/reclaim/basic/03": _LEAST_DESTROYED,
    "KAI/cycle/reclaim/fractional/02": _LEAST_DESTROYED,
    "KAI/action/consolidation/subgroups/03": _NEEDED_STAY,
    "KAI/cycle/consolidation/gang/00": _NEEDED_STAY,
    "KAI/action/consolidation/subgroups/05": "another one of two equal members is migrated",
    "KAI/action/allocate/elastic/07": "the older optional pods go first, not those of the smallest subgroup",
}
"""The same for cases whose needs do not say it, by id."""


def differs(case: Case) -> bool:
    return case["id"] in DIFFERS_IN or not DIFFERS.keys().isdisjoint(case["needs"])
