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
    "cores_clamp": "more than all of a GPU's compute is refused by name",
    "device_cordon": "a GPU is cordoned by its agent, not by an annotation on the node",
    "group_spread": "pods are kept apart by anti-affinity and topology spread",
}
"""By need: what Kerf does instead."""


SUITES: dict[str, str] = {
    "HAMi/score_weights": "a policy has no weights that a pod could set; the annotation is refused by name",
    "HAMi/gpu_score": "scores are the policy's own",
    "HAMi/gpu_order": "GPUs are sorted by how full they are; of several the set with the best links on few NUMA nodes",
    "HAMi/node_score": "scores are the policy's own",
    "HAMi/gpu_topology": "links decide which GPUs go together, and not scores on a node's annotation",
    "HAMi/mig_filter": "sizes of instances are the GPU's own",
    "Volcano/gpu_score": "scores are the policy's own",
    "Volcano/mig_match": "sizes of instances are the GPU's own, and any mixture that its placements allow",
    "Volcano/mig_accounting": "sizes of instances are the GPU's own, and any mixture that its placements allow",
    "Volcano/exclusive_rules": "GPUs of some pods only are a pod's whole GPUs, or a queue's",
    "Volcano/exclusive_reserved": "GPUs of some pods only are a pod's whole GPUs, or a queue's",
}
"""By suite: what Kerf does instead, where nothing in it could answer as the peer does."""

_LEAST_DESTROYED = "the job whose end destroys the least ends, not the newest"
_NEEDED_STAY = "no member that its gang needs is migrated (0166)"

CASES: dict[str, str] = {
    "HAMi/request_parsing/11": "a negative amount is refused, as the API server refuses it",
    "HAMi/admission/14": "requests count without limits, as they do in HAMi's parser but not in its admission",
    "KAI/cycle/reclaim/basic/03": _LEAST_DESTROYED,
    "KAI/cycle/reclaim/fractional/02": _LEAST_DESTROYED,
    "KAI/action/consolidation/subgroups/03": _NEEDED_STAY,
    "KAI/cycle/consolidation/gang/00": _NEEDED_STAY,
    "KAI/action/consolidation/subgroups/05": "another one of two equal members is migrated",
    "KAI/action/allocate/elastic/07": "the older optional pods go first, not those of the smallest subgroup",
}
"""By case: what Kerf does instead."""


def differs(case: Case) -> bool:
    suite = f"{case['peer']}/{case['suite']}"
    return not DIFFERS.keys().isdisjoint(case["needs"]) or suite in SUITES or case["id"] in CASES
