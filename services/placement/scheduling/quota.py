"""Whether a pod that is not created yet would pass its namespace's ResourceQuotas. The API server has the say on those
that are: what it admits is counted, and placement asks no more."""

from __future__ import annotations

from collections.abc import Iterable

from shared.book.demand import effective
from shared.contracts.explain import Reason
from shared.model import names
from shared.model.kube_object import Quantities
from shared.model.objects import Pod, ResourceQuota
from shared.model.units import format_mib, mib, whole

_REQUESTS = "requests."


def over_quota(pod: Pod, quotas: Iterable[ResourceQuota]) -> Reason | None:
    """The first quota of GPU resources that the pod would exceed. Quotas of some pods only (scopes) are left to the API
    server. Init containers count by their peak, as everywhere in Kubernetes."""
    needs = effective(pod, _gpu_amounts)
    for quota in quotas:
        if (
            quota.metadata.namespace != pod.metadata.namespace
            or quota.spec.get("scopes")
            or quota.spec.get("scopeSelector")
        ):
            continue
        used = quota.status.get("used") or {}
        for key, hard in (quota.spec.get("hard") or {}).items():
            need = needs.get(key.removeprefix(_REQUESTS), 0) if key.startswith(_REQUESTS) else 0
            left = whole(hard) - whole(used.get(key, 0))
            if need and need > left:
                return _exceeded(quota.metadata.name, key.removeprefix(_REQUESTS), need, max(0, left))
    return None


def _gpu_amounts(requests: Quantities, limits: Quantities) -> dict[str, int]:
    return {name: whole(value) for name, value in (limits | requests).items() if names.is_gpu_resource(name)}


def _exceeded(quota: str, resource: str, need: int, left: int) -> Reason:
    def words(amount: int) -> str:
        return format_mib(mib(amount)) if resource == names.RESOURCE_GPU_MEMORY else str(amount)

    return Reason(
        code="quota",
        sentence=f"ResourceQuota {quota} has {words(left)} of {resource} left, the pod asks for {words(need)}",
        helps=f"ask for {words(need - left)} less of {resource}, or raise the quota",
        lacking=need - left,
    )
