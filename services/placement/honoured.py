"""What Kerf does not yet honour is refused by name, never ignored."""

from __future__ import annotations

from shared.book.states import PodState
from shared.contracts.explain import Reason


def refusal(state: PodState) -> Reason | None:
    """Why this pod can never be placed as it is written, or None."""
    if state.refusal:
        return Reason(code=state.refusal_code, sentence=state.refusal, helps="correct the pod and create it again")
    if state.pod.spec.resource_claims:
        return Reason(code="claims-not-honoured", sentence="the pod uses resourceClaims, which Kerf does not place yet", helps="ask by kerf.dev/gpu resources, or leave the pod to the default scheduler")
    return None
