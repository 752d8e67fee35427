"""When a pod of StatefulSet kerf-nats is replaced: where its template asks for it, one pod at a time. Pure.

The StatefulSet replaces none itself (OnDelete): its template names Kerf's image, and a new version of Kerf is no reason
to end a NATS server, for which everything waits. The reasons are in the template's annotations; a pod without one of
them is of an earlier template. That covers `kubectl rollout restart`, which sets an annotation too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from services.operator.messages import Write
from services.operator.objects import NATS_SERVERS, Pod, StatefulSet
from shared.contracts.permissions import callout_users_digest
from shared.kube.resources import POD

_OWN_CALLOUT_USERS = callout_users_digest()

USERS = "kerf.dev/nats-users"
"""Annotation of StatefulSet and pods, and prefix of the servers' tag: the digest of the users' permissions, which
servers read again without a restart."""

CALLOUT_USERS = "kerf.dev/nats-callout-users"
"""Annotation of the StatefulSet: `permissions.callout_users_digest` of the version that was installed last."""
PASSING_S = 300.0
"""Not shorter: where an operator stays behind, all agents come as often as this."""

COUNT = "kerf.dev/nats-servers"
"""Annotation of the template: how many servers there are. A server alone and a cluster have no streams in common."""


def wanted_tag(servers: StatefulSet | None) -> str:
    """The tag of a server that has read the present permissions; empty where none is asked for."""
    digest = servers.metadata.annotations.get(USERS, "") if servers else ""
    return f"{USERS}:{digest}" if digest else ""


def session_s(servers: StatefulSet | None, whole_s: float) -> float:
    """How long a session lasts that this operator admits, in seconds: `whole_s`. Or PASSING_S where the installation
    has other permissions for it: an operator that an upgrade or a rollback will replace gives those of its version."""
    installed = servers.metadata.annotations.get(CALLOUT_USERS, "") if servers else ""
    return whole_s if installed in ("", _OWN_CALLOUT_USERS) else min(whole_s, PASSING_S)


def outdated(servers: StatefulSet | None, pods: Iterable[Pod]) -> list[Pod]:
    """The pods of an earlier template, the last of the StatefulSet first, as its own controller replaces them."""
    if servers is None:
        return []
    reasons = servers.spec.template.metadata.annotations.items()
    found = [pod for pod in pods if not reasons <= pod.metadata.annotations.items()]
    return sorted(found, key=lambda pod: pod.metadata.name, reverse=True)


def decide(servers: StatefulSet | None, pods: Iterable[Pod]) -> list[Write]:
    """Replaces one outdated pod while all are ready, or one that is not ready while nothing else is amiss. Where the
    number of servers has changed all are replaced at once: those of a new cluster are not ready while one of them still
    works alone.

    Where the users' permissions have changed, each pod gets their digest as an annotation: a changed pod is what lets
    the kubelet update its volumes at once instead of within a minute or two.
    """
    if servers is None:
        return []
    pods = [pod for pod in pods if pod.metadata.deletion_timestamp is None]
    count = servers.spec.template.metadata.annotations.get(COUNT)
    old = outdated(servers, pods)
    apart = [pod for pod in old if pod.metadata.annotations.get(COUNT, count) != count]
    ready = [pod for pod in pods if pod.ready]
    # A new pod that is not ready may be so because of the new settings: then none of the others is given up for them.
    settled = not ready or all(pod.ready or pod in old for pod in pods)
    down = [pod for pod in old if settled and not pod.ready]
    whole = len(pods) == len(ready) == servers.spec.replicas
    replaced = apart or down[:1] or (old[:1] if whole else [])
    writes = []
    for pod in replaced:
        why = f"pod {pod.metadata.name} is replaced: StatefulSet {NATS_SERVERS} has other settings now"
        body = {"preconditions": {"uid": pod.metadata.uid}}
        writes.append(Write(method="DELETE", resource=POD, name=pod.metadata.name, body=body, why=why))
    digest = servers.metadata.annotations.get(USERS, "")
    for pod in pods:
        if pod not in replaced and digest and pod.metadata.annotations.get(USERS) != digest:
            told: dict[str, Any] = {"metadata": {"uid": pod.metadata.uid, "annotations": {USERS: digest}}}
            why = f"pod {pod.metadata.name} is told of the users' new permissions"
            writes.append(Write(method="PATCH", resource=POD, name=pod.metadata.name, body=told, why=why))
    return writes
