"""Reads a manifest of a pod that need not exist, as if it were created now in its canonical form."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from shared.book.states import PodState, pod_state
from shared.contracts.base import ContractError, decode, encode
from shared.model import names
from shared.model.affinity import Toleration
from shared.model.objects import Pod

_TOLERATED = Toleration(key=names.TAINT_MANAGED, operator="Exists", effect="NoSchedule")


class NoManifest(ValueError):
    """What was given is no manifest of a pod. The text says why."""


def read_pod(given: Any) -> PodState:
    """Returns the state of the pod; it is in no book. Raises NoManifest."""
    try:
        pod = decode(encode(given), Pod)
    except ContractError as error:
        raise NoManifest(f"that is no pod manifest: {error}") from error
    if not pod.spec.containers:
        raise NoManifest("the pod has no containers; give a whole pod manifest with spec.containers")
    meta = replace(
        pod.metadata,
        uid=f"what-if/{pod.metadata.name}",
        resource_version="0",
        namespace=pod.metadata.namespace or "default",
    )
    state = pod_state(replace(pod, metadata=meta))
    if state.request is None:
        return state
    # As admission does: without it every node of Kerf's would turn the pod away.
    spec = replace(pod.spec, tolerations=(*pod.spec.tolerations, _TOLERATED))
    return pod_state(replace(pod, metadata=meta, spec=spec))
