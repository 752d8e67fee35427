"""What Kerf does not yet honour is refused by name, never ignored."""

from __future__ import annotations

from shared.book.states import PodState
from shared.contracts.explain import Reason
from shared.model import names
from shared.model.claims import CLAIM_COMING

_PASSES = {
    CLAIM_COMING: "look at the template, and whether kube-controller-manager runs",
    "claim-missing": "create it, and the pod is placed",
    "claim-ending": "create the claim anew once it is gone, or let a template make it with the pod",
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
    if state.runs_on and not state.pod.spec.node_name:
        node = state.runs_on
        return Reason(
            code="still-running",
            sentence=f"the pod's containers still run on node {node} by a Binding that the API server no longer has",
            helps=f"the pod is placed as soon as node {node} has ended them: look at its kubelet; delete the Node if "
            "the machine is gone for good",
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
    return remote_refusal(state)


def remote_refusal(state: PodState) -> Reason | None:
    """Why a pod cannot agree to a GPU of another node, or None."""
    request = state.request
    if request is None or request.remote is None:
        return None
    asks = tuple(request.asks.values())
    if state.gang is not None:
        what = "its pods are placed together, and a gang's are placed on local GPUs only"
        return _no_remote("remote-gang", f"the pod belongs to a gang: {what}")
    if len(asks) != 1 or asks[0].count != 1 or asks[0].profile or state.claims or request.nics:
        what = "one GPU, or a part of one, for one container, without MIG profile, ResourceClaim or network card"
        return _no_remote("remote-request", f"another node can give {what}")
    return None


def _no_remote(code: str, why: str) -> Reason:
    return Reason(
        code=code,
        sentence=f"the annotation {names.ANNOTATION_REMOTE} does not go with the rest of the pod: {why}",
        helps=f"leave out {names.ANNOTATION_REMOTE}",
    )
