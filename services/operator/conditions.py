"""The state of the installation, as conditions: what `kubectl get cm kerf-status` and `kerf doctor` show."""

from __future__ import annotations

import datetime

from services.operator import certificates as pki
from services.operator import enrolment, nats_servers, passwords, schedulers
from services.operator.authority import server_names
from services.operator.config import Config
from services.operator.messages import Condition
from services.operator.objects import NATS_USERS, SCHEDULERS, ConfigMap
from services.operator.observed import Observed
from shared.model import names, neighbours

CANONICAL_WEBHOOK = "canonical.kerf.dev"
"""The chart has it where the API server has no MutatingAdmissionPolicy."""
LISTED = "system:kube-scheduler"
"""What ConfigMap kerf-schedulers begins with."""
TOLD_ONCE = ("NoNodes", "OtherDevicePlugin", "OtherDraDriver", "NoGpuDiscovered")
"""Reasons whose message names nodes, which come and go: one Event, and ConfigMap kerf-status has those of now."""


def conditions(seen: Observed, config: Config, now_s: float) -> list[Condition]:
    """All of them, each with its present status; the time of its last change is the caller's."""
    return [
        _users(seen, config),
        _certificates(seen, config, now_s),
        _webhook(seen, config),
        _canonical(seen, config),
        _nats(seen, config),
        _pods(seen, config, now_s),
        _nodes(seen, config),
        _of_nodes(
            "DevicePluginAlone",
            "OtherDevicePlugin",
            neighbours.other_plugins(seen.neighbours),
            "no other device plugin offers GPUs of enrolled nodes",
        ),
        _of_nodes(
            "DraDriverAlone",
            "OtherDraDriver",
            neighbours.other_driver(seen.neighbours, seen.slices.values()),
            "NVIDIA's DRA driver offers no GPUs of enrolled nodes",
        ),
        _of_nodes(
            "NodesHaveGpus",
            "NoGpuDiscovered",
            neighbours.without_gpu(seen.neighbours),
            "Node Feature Discovery, where it is there, finds a GPU on every enrolled node",
        ),
        _schedulers(seen, config),
    ]


def _users(seen: Observed, config: Config) -> Condition:
    kind = "NatsUsersReady"
    if not config.nats_url:
        return Condition(type=kind, status="True", reason="ExternalNats", message="NATS' users are not Kerf's")
    have = seen.secrets.get(NATS_USERS)
    lacking = [
        key for key in (*passwords.PASSWORDS, passwords.ISSUER, passwords.SEED) if not have or not have.text(key)
    ]
    if lacking:
        message = f"Secret {NATS_USERS} lacks {', '.join(lacking)}; the operator is making them"
        return Condition(type=kind, status="False", reason="UsersMissing", message=message)
    return Condition(type=kind, status="True", reason="UsersMade", message=f"Secret {NATS_USERS} is complete")


def _certificates(seen: Observed, config: Config, now_s: float) -> Condition:
    kind, problems = "CertificatesReady", []
    for name in server_names(config):
        present = seen.certificate(name)
        if present is None:
            whose = "the operator is making it" if config.certificates == "bootstrap" else "make it, or wait"
            problems.append(f"Secret {name} has no certificate in tls.crt; {whose}")
        elif (left_s := pki.not_after(present) - now_s) <= 0:
            problems.append(f"certificate {name} has expired; renew it")
        elif config.certificates != "bootstrap" and pki.late(present, now_s, config.warn_days * pki.DAY_S):
            problems.append(f"certificate {name} ends in {left_s / pki.DAY_S:.1f} days; renew it")
    if problems:
        return Condition(type=kind, status="False", reason="CertificateProblem", message="; ".join(problems))
    return Condition(type=kind, status="True", reason="CertificatesValid", message="all certificates are valid")


def _webhook(seen: Observed, config: Config) -> Condition:
    kind, name = "WebhookReady", config.webhook
    if not name:
        return Condition(type=kind, status="True", reason="NoWebhook", message="no webhook is managed")
    if seen.webhooks is None:
        message = f"MutatingWebhookConfiguration {name} does not exist: pods of other dialects are not translated"
        return Condition(type=kind, status="False", reason="WebhookMissing", message=message)
    if not all(webhook.client_config.ca_bundle for webhook in seen.webhooks.webhooks):
        message = f"MutatingWebhookConfiguration {name} has no caBundle: creating pods of other dialects fails"
        return Condition(type=kind, status="False", reason="CaBundleMissing", message=message)
    return Condition(type=kind, status="True", reason="CaBundleSet", message=f"{name} trusts Kerf's CA")


def _canonical(seen: Observed, config: Config) -> Condition:
    """What completes pods that ask for kerf.dev GPUs: the API server itself, or the webhook where it cannot."""
    kind = "CanonicalAdmission"
    hooks = () if seen.webhooks is None else seen.webhooks.webhooks
    if not config.webhook:
        return Condition(type=kind, status="True", reason="NoWebhook", message="admission is not managed")
    if seen.policy is not None:
        message = f"MutatingAdmissionPolicy {seen.policy.metadata.name} completes pods that ask for kerf.dev GPUs"
        return Condition(type=kind, status="True", reason="ByPolicy", message=message)
    if any(webhook.name == CANONICAL_WEBHOOK for webhook in hooks):
        message = (
            f"webhook {CANONICAL_WEBHOOK} completes pods that ask for kerf.dev GPUs; while it is down, none can be "
            "created"
        )
        return Condition(type=kind, status="True", reason="ByWebhook", message=message)
    message = (
        "nothing completes pods that ask for kerf.dev GPUs: they are refused. Render the chart for this cluster, with "
        "admission.canonical=webhook where it serves no MutatingAdmissionPolicy v1"
    )
    return Condition(type=kind, status="False", reason="NotAdmitted", message=message)


def _nats(seen: Observed, config: Config) -> Condition:
    kind, nats = "NatsReady", seen.nats
    if not config.nats_url:
        return Condition(type=kind, status="True", reason="ExternalNats", message="NATS is not Kerf's")
    if nats.problem:
        return Condition(type=kind, status="Unknown", reason="NatsNotAsked", message=nats.problem)
    if nats.servers < config.nats_servers:
        message = (
            f"{nats.servers} of {config.nats_servers} NATS servers answer; look at the pods of StatefulSet kerf-nats"
        )
        return Condition(type=kind, status="False", reason="ServersMissing", message=message)
    if nats.stale:
        message = (
            f"NATS servers {', '.join(nats.stale)} have an earlier certificate or the users' earlier permissions; they "
            "reload when the kubelet has updated their volume"
        )
        return Condition(type=kind, status="False", reason="NotReloaded", message=message)
    if old := nats_servers.outdated(seen.stateful_set, seen.servers):
        message = (
            f"pods {', '.join(pod.metadata.name for pod in old)} have earlier settings; they are replaced one by one, "
            "each when the others are ready"
        )
        return Condition(type=kind, status="False", reason="ServersOutdated", message=message)
    return Condition(type=kind, status="True", reason="ServersReady", message=f"{nats.servers} NATS servers answer")


def _pods(seen: Observed, config: Config, now_s: float) -> Condition:
    kind = "PodsReady"
    late = sorted(
        pod.metadata.name
        for pod in seen.own.values()
        if pod.metadata.namespace == config.namespace
        and pod.spec.service_account_name != config.agent_account  # nodes come and go; the alerts look at their agents
        and (since := pod.unready_since)
        and now_s - datetime.datetime.fromisoformat(since).timestamp() > config.unready_s
    )
    if late:
        message = (
            f"pods {', '.join(late)} are not ready for more than {config.unready_s:g} s; look at "
            f"kubectl -n {config.namespace} describe pod {late[0]}, and at its log"
        )
        return Condition(type=kind, status="False", reason="PodsNotReady", message=message)
    return Condition(type=kind, status="True", reason="PodsReady", message="no pod of Kerf's is late")


def _nodes(seen: Observed, config: Config) -> Condition:
    kind, count = "NodesEnrolled", seen.enrolled
    if not config.enrolment:
        return Condition(type=kind, status="True", reason="EnrolmentOff", message="nodes are not enrolled by Kerf")
    if occupied := seen.occupied:
        first, others = next(iter(occupied.items()))
        message = enrolment.occupied_text(first, others)
        if len(occupied) > 1:
            message += f"; {len(occupied) - 1} more with the label wait in the same way"
        return Condition(type=kind, status="False", reason="NodesOccupied", message=message)
    others = neighbours.not_enrolled(seen.neighbours)
    more = f"; with GPUs and not enrolled: {len(others)} ({neighbours.listed(others)})" if others else ""
    if not count:
        message = f"no node is enrolled, so Kerf places no pods: kubectl label node NODE {names.LABEL_MANAGED}=true"
        return Condition(type=kind, status="False", reason="NoNodes", message=message + more)
    return Condition(type=kind, status="True", reason="Enrolled", message=f"enrolled nodes: {count}{more}")


def _of_nodes(kind: str, reason: str, trouble: neighbours.Trouble | None, well: str) -> Condition:
    if trouble is None:
        return Condition(type=kind, status="True", reason="AsItShouldBe", message=well)
    return Condition(type=kind, status="False", reason=reason, message=f"{trouble.text}; {trouble.do}")


def _schedulers(seen: Observed, config: Config) -> Condition:
    kind = "SchedulersListed"
    found = schedulers.unlisted(
        seen.roles,
        seen.bindings.values(),
        listed=seen.maps.get(SCHEDULERS, ConfigMap()).data.get("accounts", LISTED),
        running=seen.accounts,
        own=(f"system:serviceaccount:{config.namespace}:{config.watcher_account}",),
    )
    if not found:
        return Condition(type=kind, status="True", reason="AllListed", message="every scheduler in use is listed")
    which = "; ".join(f"{account} (ClusterRoleBinding {binding})" for account, binding in found.items())
    message = (
        f"these accounts may bind pods and are not in ConfigMap {SCHEDULERS}: {which}. Add those that are "
        "schedulers to its key accounts, separated by blanks, before the policy kerf-binding denies"
    )
    return Condition(type=kind, status="False", reason="SchedulerNotListed", message=message)
