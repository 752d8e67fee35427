"""Why the second-best node came second, as a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shared.contracts.explain import Candidate

_WORSE = {
    "balance": "it would leave GPUs there with too little CPU or memory to be used",
    "prices": "its CPU, memory and GPUs are wanted more by others",
    "waste": "it would leave a part of a GPU, or of a MIG instance, that hardly any pod requests",
    "groups": "it would break up idle GPUs that pods of several GPUs need together",
    "gpu-policy": "its GPUs suit the policy less",
    "expected-slowdown": "pods on its GPUs would slow each other down more",
    "cpu-apart": "it is better kept for pods with GPUs",
    "gpu-links": "its free GPUs are linked less well",
    "gpu-preference": "its GPUs are dearer or slower, as the pod prefers",
    "preferred-node": "it matches less of what the pod prefers",
    "fullest-cpu": "it is emptier, and better kept so for large pods",
    "prefer-no-schedule": "it has a PreferNoSchedule taint",
    "preferred-spread": "more pods like this one are there already",
    "preferred-pods": "the pods there are less like what the pod prefers to be with",
}
"""By term of the policy, then by score."""


def runner_up(node: str, candidates: Sequence[Candidate]) -> str:
    """What comes next to `node` among the candidates (best first), and what speaks against it most; empty without
    any."""
    own = next((c for c in candidates if c.node == node), None)
    other = next((c for c in candidates if c.node != node), None)
    if other is None:
        return "no other node could take it now"
    if own is None or other.total > own.total:
        return f"by now {other.node} would be better, for the cluster has changed since the pod was placed"
    if other.total == own.total:
        return f"{other.node} is as good; of equals the first one in a fixed order is taken"
    most, lost = _most_lost(own.scores, other.scores)
    if most == "gpu-policy" and own.terms:
        most, lost = _most_lost(own.terms, other.terms)
    return f"{other.node} is second" + (f": {_WORSE.get(most, f'it has less {most}')}" if lost > 0 else "")


def _most_lost(best: Mapping[str, int], second: Mapping[str, int]) -> tuple[str, int]:
    return max(
        ((name, value - second.get(name, 0)) for name, value in best.items()), key=lambda item: item[1], default=("", 0)
    )
