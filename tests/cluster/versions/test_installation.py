"""The chart chooses by what the API server serves, and its policies decide the same on every version."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import structlog

from cli.doctor.base import Finding
from cli.doctor.base import Site as DoctorSite
from cli.doctor.kubernetes import Kubernetes
from services.admission.core import Policy, review
from services.admission.messages import Allowed, Refused, Request
from services.operator.conditions import conditions
from services.operator.config import Config as OperatorConfig
from services.operator.messages import Condition
from services.operator.objects import TYPES, followed
from services.operator.observed import Observed
from services.simulator.patch import json_patch
from shared.kube.reflector import Reflector
from tests.cluster.versions.site import WEBHOOKS, Site, admission, helm, transport
from tests.support import manifests
from tests.support.waiting import eventually

GROUPS = {36: "podgroups.v1alpha2.scheduling.k8s.io", 37: "podgroups.v1beta1.scheduling.k8s.io"}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


def canonical_webhook(kube: Site) -> bool:
    return "canonical.kerf.dev" in [hook["name"] for hook in kube.call("GET", WEBHOOKS)["webhooks"]]


def test_the_policy_completes_pods_where_it_is_served_and_the_webhook_elsewhere(kube: Site) -> None:
    """MutatingAdmissionPolicy is v1 from Kubernetes 1.36 on: kubernetes/kubernetes pkg/controlplane/instance.go."""
    assert kube.has_policies == (kube.number >= 36)
    assert kube.exists(f"{ADMISSION}/mutatingadmissionpolicies/kerf-canonical") == kube.has_policies
    assert canonical_webhook(kube) != kube.has_policies
    assert ("this cluster has no MutatingAdmissionPolicy" in kube.notes) != kube.has_policies


def test_claims_are_offered_where_their_api_is_stable(kube: Site) -> None:
    assert kube.exists("/apis/resource.k8s.io/v1/deviceclasses/gpu.kerf.dev") == (kube.number >= 34)


def test_values_override_what_was_discovered(kube: Site) -> None:
    """For clusters that serve the policy and have its admission plugin switched off, and for GitOps."""
    notes = helm(kube, "upgrade", "--set=admission.canonical=webhook", "--set=dynamicResourceAllocation.enabled=false")
    try:
        assert canonical_webhook(kube)
        assert not kube.exists(f"{ADMISSION}/mutatingadmissionpolicies/kerf-canonical")
        assert not kube.exists("/apis/resource.k8s.io/v1/deviceclasses/gpu.kerf.dev")
        assert "Kerf's webhook" in notes
    finally:
        helm(kube, "upgrade")
    assert canonical_webhook(kube) != kube.has_policies


def pod(*limits: dict[str, str], init: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    def container(name: str, asked: dict[str, str]) -> dict[str, Any]:
        return {"name": name, "image": "example", "resources": {"limits": asked}}

    first = {"initContainers": [container("init", init)]} if init else {}
    containers = [container(f"c{number}", asked) for number, asked in enumerate(limits)]
    return {"metadata": {"name": "p"}, "spec": {"containers": containers, **first, **spec}}


KINDS = {
    "whole": pod({"kerf.dev/gpu": "2"}),
    "memory": pod({"kerf.dev/gpu-memory": "16Gi"}),
    "compute": pod({"kerf.dev/gpu-compute": "30"}),
    "both": pod({"kerf.dev/gpu-memory": "16Gi", "kerf.dev/gpu-compute": "30"}),
    "percent": pod({"kerf.dev/gpu-memory-percent": "25"}),
    "mig": pod({"kerf.dev/mig-1g.10gb": "1"}),
    "several": pod({"kerf.dev/gpu-memory": "8Gi"}, {"cpu": "1"}, {"kerf.dev/gpu-memory": "4Gi"}),
    "init": pod({"kerf.dev/gpu": "1"}, init={"kerf.dev/gpu": "1"}),
    "tolerates": pod({"kerf.dev/gpu": "1"}, tolerations=[{"operator": "Exists"}]),
    "dialect": pod({"aliyun.com/gpu-mem": "3"}),
    "without": pod({"cpu": "1"}),
}


@pytest.mark.parametrize("name", KINDS)
async def test_every_kind_of_pod_becomes_what_admission_makes_of_it(kube: Site, name: str) -> None:
    """By policy or by webhook: the same scheduler, resources and toleration."""
    asked = KINDS[name]
    async with admission(kube):
        made = await asyncio.to_thread(
            kube.call, "POST", "/api/v1/namespaces/default/pods?dryRun=All", asked, expect=201
        )
    decided = review(Request(pod=asked, namespace="default"), Policy())
    assert isinstance(decided, Allowed), decided
    wanted = json_patch(asked, list(decided.patches))
    assert made["spec"]["schedulerName"] == wanted["spec"].get("schedulerName", "default-scheduler")
    for field in ("containers", "initContainers"):
        for has, should in zip(made["spec"].get(field, []), wanted["spec"].get(field, []), strict=True):
            assert amounts(has["resources"]["limits"]) == amounts(should["resources"]["limits"]), field
    ours = [one for one in made["spec"]["tolerations"] if one.get("key") == "kerf.dev/managed"]
    assert len(ours) == len([o for o in wanted["spec"].get("tolerations", []) if o.get("key") == "kerf.dev/managed"])


@pytest.mark.parametrize("name", ["whole", "several", "init", "dialect"])
async def test_a_profile_of_the_namespace_is_the_same_on_every_version(kube: Site, name: str) -> None:
    """By policy, by webhook, or by both: in `debug` what admission makes of the pod, in `train` the same refusals."""
    asked = KINDS[name]
    for profile in ("debug", "train"):
        manifest = {"metadata": {"name": profile, "labels": {"kerf.dev/profile": profile}}}
        kube.plane.request("POST", "/api/v1/namespaces", manifest)
        kube.plane.request("POST", f"/api/v1/namespaces/{profile}/serviceaccounts", {"metadata": {"name": "default"}})
    for profile in ("debug", "train"):
        decided = review(Request(pod=asked, namespace=profile), Policy(profile=profile))
        async with admission(kube):
            status, text = await asyncio.to_thread(
                kube.plane.request, "POST", f"/api/v1/namespaces/{profile}/pods?dryRun=All", asked
            )
        answer = json.loads(text)
        if isinstance(decided, Refused):
            assert (status, manifests.code_of(answer["message"])) == (422, decided.code), answer
            continue
        assert status == 201, answer
        wanted = json_patch(asked, list(decided.patches))
        for field in ("containers", "initContainers"):
            for has, should in zip(answer["spec"].get(field, []), wanted["spec"].get(field, []), strict=True):
                assert amounts(has["resources"]["limits"]) == amounts(should["resources"]["limits"]), field


def amounts(limits: dict[str, str]) -> dict[str, str]:
    """2k is 2000: the API server writes quantities in their canonical form."""
    return {key: value.replace("k", "000") for key, value in limits.items()}


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (pod({"kerf.dev/gpu": "1"}, schedulerName="other"), "other-scheduler"),
        (pod({"kerf.dev/gpu": "1"}, nodeName="n"), "node-name-set"),
        (pod({"kerf.dev/gpus": "1"}), "unknown-resource"),
        (pod({"kerf.dev/gpu": "100"}), "too-many-gpus"),
        (pod({"kerf.dev/gpu-memory": "16"}), "memory-too-small"),
        (pod({"kerf.dev/slot": "1"}), "slot-without-gpu"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_makes_no_sense_is_refused_with_its_code(kube: Site, spec: dict[str, Any], code: str) -> None:
    async with admission(kube):
        status, answer = await asyncio.to_thread(
            kube.plane.request, "POST", "/api/v1/namespaces/default/pods?dryRun=All", spec
        )
    assert (status in (403, 422), manifests.code_of(json.loads(answer)["message"])) == (True, code), answer


async def test_doctor_and_operator_say_what_completes_pods(kube: Site) -> None:
    """The operator by what it follows under its own account, `kerf doctor` by what the server answers."""
    reason = "ByPolicy" if kube.has_policies else "ByWebhook"
    assert (await operators_condition(kube)).reason == reason
    async with admission(kube), transport(kube) as client:
        first, *others = await Kubernetes().run(DoctorSite(url="", user="", kube=client))
    assert first.status == "ok", first
    assert f"Kubernetes v{kube.minor}." in first.text
    assert ("MutatingAdmissionPolicy kerf-canonical completes" in first.text) == kube.has_policies
    assert ("does not serve MutatingAdmissionPolicy" in first.text) != kube.has_policies
    groups = [finding.text for finding in others if "PodGroups" in finding.text]
    assert groups == ([f"gangs are also read from PodGroups ({GROUPS[kube.number]})"] if kube.number in GROUPS else [])


async def test_admission_that_is_installed_and_does_not_work_is_a_failure_of_doctor(kube: Site) -> None:
    """A policy that is not in force, as where its admission plugin is switched off, leaves pods to a scheduler that
    can never place them; a webhook that nothing answers."""
    if kube.has_policies:
        kube.call("DELETE", f"{ADMISSION}/mutatingadmissionpolicybindings/kerf-canonical")
    wanted = "[other-scheduler]" if kube.has_policies else "failed calling webhook"

    async def told() -> Finding | None:
        async with transport(kube) as client:
            first, *_ = await Kubernetes().run(DoctorSite(url="", user="", kube=client))
        return first if first.status == "fail" else None

    try:
        found = await eventually(told, within_s=30, every_s=0.2, what="a failure of doctor")
    finally:
        helm(kube, "upgrade")
    assert wanted in found.text
    assert found.do


async def operators_condition(kube: Site) -> Condition:
    seen, config = Observed(), OperatorConfig()

    def take(facts: list[Any]) -> None:
        for fact in facts:
            seen.put(fact.object)

    kinds = {"MutatingAdmissionPolicy", "MutatingWebhookConfiguration"}
    async with transport(kube, "kerf-operator") as client:
        reflectors = [
            Reflector(client, one, take, structlog.get_logger(), kind=TYPES[one.kind])
            for one in followed(config.namespace, config.webhook)
            if one.kind in kinds
        ]
        tasks = [asyncio.create_task(one.run()) for one in reflectors]
        try:
            await asyncio.wait_for(asyncio.gather(*(one.wait_synced() for one in reflectors)), 30)
        finally:
            for task in tasks:
                task.cancel()
    (found,) = [one for one in conditions(seen, config, 0.0) if one.type == "CanonicalAdmission"]
    return found


def test_the_whole_chart_has_rights_for_no_more_than_it_uses(kube: Site) -> None:
    """The watcher writes a PodGroup's condition, and nothing else of it."""
    for verb, sub, allowed in (("patch", "status", True), ("patch", "", False), ("delete", "", False)):
        spec = {
            "user": "system:serviceaccount:kerf-system:kerf-watcher",
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {
                "verb": verb,
                "group": "scheduling.k8s.io",
                "resource": "podgroups",
                "subresource": sub,
                "namespace": "default",
            },
        }
        review_path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        assert kube.call("POST", review_path, {"spec": spec}, expect=201)["status"]["allowed"] is allowed
