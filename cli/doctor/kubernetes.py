from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from cli.doctor.base import CannotLook, Finding, Site
from shared.kube.discovery import DiscoveryError, served
from shared.kube.resources import KUBERNETES_POD_GROUP
from shared.kube.transport import TransportError

POLICY = "kerf-canonical"
WEBHOOK = "canonical.kerf.dev"
ROLLOUT = timedelta(minutes=10)
"""How long the agents of all nodes may take to be replaced."""
_AGENTS = "/apis/apps/v1/namespaces/kerf-system/daemonsets/kerf-node-agent"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_PROBE = {
    "metadata": {"generateName": "kerf-doctor-"},
    "spec": {
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "probe",
                "image": "kerf-doctor",
                "resources": {"limits": {"kerf.dev/gpu": "1"}},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    },
}
"""Within Pod Security's level `restricted`, and never created: a dry run."""


class Kubernetes:
    """What completes pods in Kerf's own words on this version, and which of its other APIs Kerf uses here."""

    name = "kubernetes"

    async def run(self, site: Site) -> list[Finding]:
        if site.simulated:
            return [Finding(self.name, "ok", "all nodes are simulated: there is no Kubernetes")]
        version = (await site.get("/version") or {}).get("gitVersion", "of an unknown version")
        agents = await site.get(_AGENTS)
        return [
            await self._canonical(site, version),
            *await self._claims(site, agents),
            *([] if agents is None else self._rollout(agents)),
            *await self._groups(site),
        ]

    async def _canonical(self, site: Site, version: str) -> Finding:
        kinds = await site.get(_ADMISSION) or {}
        can = "mutatingadmissionpolicies" in [one["name"] for one in kinds.get("resources", ())]
        policy = can and await site.get(f"{_ADMISSION}/mutatingadmissionpolicies/{POLICY}") is not None
        hooks = await site.get(f"{_ADMISSION}/mutatingwebhookconfigurations/kerf-dialects") or {}
        webhook = WEBHOOK in [one["name"] for one in hooks.get("webhooks", ())]
        do = f"helm upgrade kerf … --set admission.canonical={'policy' if can else 'webhook'}"
        if not policy and not webhook:
            text = f"Kubernetes {version}: nothing completes pods that ask for kerf.dev GPUs; they are refused"
            return Finding(self.name, "fail", text, do)
        by = "MutatingAdmissionPolicy kerf-canonical" if policy else "Kerf's webhook"
        why = "" if can else f", for {version} does not serve MutatingAdmissionPolicy"
        wrong = await self._probe(site)
        if wrong:
            text = f"Kubernetes {version}: {by} is to complete pods that ask for kerf.dev GPUs, and does not: {wrong}"
            do = "helm upgrade kerf … --set admission.canonical=webhook" if policy else "look at Kerf's admission pods"
            return Finding(self.name, "fail", text, do)
        return Finding(self.name, "ok", f"Kubernetes {version}: {by} completes pods that ask for kerf.dev GPUs{why}")

    async def _probe(self, site: Site) -> str:
        """Why a pod's creation, tried as a dry run, does not make it Kerf's; empty where it does, or where this
        account may not try."""
        if site.kube is None:
            return ""
        path = "/api/v1/namespaces/default/pods?dryRun=All"
        try:
            answer = await site.kube.request("POST", path, msgspec.json.encode(_PROBE))
        except TransportError as error:
            raise CannotLook(f"the API server does not answer: {error}") from error
        try:
            said: Any = msgspec.json.decode(answer.body)
        except msgspec.DecodeError:
            text = answer.body[:200].decode(errors="replace").strip()
            raise CannotLook(f"the API server answers {answer.status} to a dry run: {text}", "try again") from None
        if answer.status == 201:
            scheduler = said["spec"].get("schedulerName", "")
            return "" if scheduler == "kerf" else f"a pod keeps schedulerName {scheduler}"
        text = str(said.get("message", ""))
        return text if "[other-scheduler]" in text or "failed calling webhook" in text else ""

    async def _claims(self, site: Site, agents: Any) -> list[Finding]:
        kinds = await site.get("/apis/resource.k8s.io/v1")
        if kinds is not None or agents is None:
            return []
        settings = [
            one
            for container in agents["spec"]["template"]["spec"]["containers"]
            for one in container.get("env", ())
            if one["name"] == "KERF_NODE_AGENT_DRA" and one.get("value") == "true"
        ]
        if not settings:
            return []
        text = "agents are to serve ResourceClaims (agent.dra), and this API server has no resource.k8s.io/v1"
        return [Finding(self.name, "warn", text, "upgrade Kubernetes to 1.34, or set agent.dra=false")]

    def _rollout(self, agents: Any) -> list[Finding]:
        """Nodes that are down count as nodes without a ready next agent: of these there are `agent.maxSurge`."""
        status = agents.get("status", {})
        nodes = status.get("desiredNumberScheduled", 0)
        left = nodes - status.get("updatedNumberScheduled", 0)
        changed = max(
            (
                one.get("time", "")
                for one in agents["metadata"].get("managedFields", ())
                if one.get("subresource") != "status"
            ),
            default="",
        )
        if left <= 0 or not changed or datetime.now(UTC) - datetime.fromisoformat(changed) < ROLLOUT:
            return []
        text = f"{left} of {nodes} nodes still have an earlier agent: DaemonSet kerf-node-agent changed at {changed}"
        do = "if their number does not fall: bring nodes back that are down, delete them, or raise agent.maxSurge"
        return [Finding(self.name, "warn", text, do)]

    async def _groups(self, site: Site) -> list[Finding]:
        if site.kube is None:
            return []
        try:
            found = await served(site.kube, KUBERNETES_POD_GROUP)
        except (DiscoveryError, TransportError) as error:
            raise CannotLook(f"the API server does not say which PodGroups it has: {error}") from error
        if found is None:
            return []
        return [Finding(self.name, "ok", f"gangs are also read from PodGroups ({found.title})")]
