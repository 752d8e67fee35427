"""What Kerf does not yet honour is refused by name, never ignored."""

from __future__ import annotations

from shared.book.states import PodState
from shared.contracts.explain import Reason
from shared.model.claims import CLAIM_COMING

_PASSES = {
    CLAIM_COMING: "look at the template, and whether kube-controller-manager runs",
    "claim-missing": "create it, and the pod is placed",
    "claim-in-use": "the pod is placed when the other has ended",
}
"""Of refusals that end when something else changes, the pod as it is."""


def refusal(state: PodState) -> Reason | None:
    """Why this pod can never be placed as it is written, or None."""
    if state.excluded:
        helps = "update the pod, or delete it and create it again; it is placed as soon as an update of it succeeds"
        return Reason(
            code="not-updatable",
            sentence=f"Kerf has to update the pod before it may place it, and cannot: {state.excluded}",
            helps=helps,
        )
    if state.pod.metadata.annotations_full and not state.pod.spec.node_name:
        sentence = "the pod's annotations are so large (256 KiB is the limit) that its grant would not fit beside them"
        return Reason(
            code="annotations-full",
            sentence=sentence,
            helps="shorten its annotations: it is placed as soon as they leave 16 KiB",
        )
    if state.refusal:
        return Reason(
            code=state.refusal_code,
            sentence=state.refusal,
            helps=_PASSES.get(state.refusal_code, "correct the pod and create it again"),
        )
    return None
