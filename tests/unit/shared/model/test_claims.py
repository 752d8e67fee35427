"""ResourceClaims as GPU requests."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.model.claims import ResourceClaim, claim_asks, claim_of, request_of
from shared.model.objects import Pod
from shared.model.request import GpuAsk, RequestError


def claim(*requests: dict[str, Any], reserved: str = "", **devices: Any) -> ResourceClaim:
    document = {
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "team", "uid": "claim"},
        "spec": {"devices": {"requests": requests, **devices}},
        "status": {"reservedFor": [{"resource": "pods", "name": reserved, "uid": f"uid-{reserved}"}]}
        if reserved
        else {},
    }
    return msgspec.convert(document, ResourceClaim)


def ending(seen: ResourceClaim) -> ResourceClaim:
    meta = msgspec.structs.replace(seen.metadata, deletion_timestamp="2026-11-28T00:00:00Z")
    return msgspec.structs.replace(seen, metadata=meta)


def gpu(
    name: str = "gpu", device_class: str = "gpu.kerf.dev", capacity: dict[str, str] | None = None, **exactly: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "exactly": {"deviceClassName": device_class, "capacity": {"requests": capacity or {}}, **exactly},
    }


def pod(made: str = "", **source: str) -> Pod:
    statuses = [{"name": "mine", "resourceClaimName": made}] if made else []
    document = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team", "uid": "uid-p"},
        "spec": {"resourceClaims": [{"name": "mine", **(source or {"resourceClaimName": "c"})}]},
        "status": {"resourceClaimStatuses": statuses},
    }
    return msgspec.convert(document, Pod)


def asks(*requests: dict[str, Any]) -> dict[str, GpuAsk]:
    return claim_asks(pod(), {"team/c": claim(*requests)})


@pytest.mark.parametrize(
    ("request_", "ask"),
    [
        (gpu(), GpuAsk(count=1, compute_milli=1000, whole=True)),
        (gpu(count=4), GpuAsk(count=4, compute_milli=1000, whole=True)),
        (gpu(capacity={"memory": "16Gi"}), GpuAsk(count=1, memory_mib=16_384)),
        (
            gpu(capacity={"memory": "16Gi", "compute": "30"}, count=2),
            GpuAsk(count=2, memory_mib=16_384, compute_milli=300),
        ),
        (gpu(capacity={"compute": "30"}), GpuAsk(count=1, compute_milli=300, memory_milli=300)),
        (gpu(allocationMode="ExactCount"), GpuAsk(count=1, compute_milli=1000, whole=True)),
    ],
)
def test_capacity_is_of_each_gpu(request_: dict[str, Any], ask: GpuAsk) -> None:
    assert asks(request_) == {"claim/mine/gpu": ask}


def test_each_request_is_an_entry_of_its_own() -> None:
    found = asks(gpu("small", capacity={"memory": "1Gi"}), gpu("large"))
    assert {(claim_of(entry), request_of(entry)) for entry in found} == {("mine", "small"), ("mine", "large")}
    assert claim_of("main") == ""


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (claim(gpu(device_class="nic.example.com")), "claim-other-class"),
        (claim({"name": "gpu", "firstAvailable": [{"name": "a"}]}), "claim-alternatives"),
        (claim(gpu(), constraints=[{"matchAttribute": "gpu.kerf.dev/productName"}]), "claim-constraints"),
        (claim(gpu(allocationMode="All")), "claim-mode"),
        (claim(gpu(adminAccess=True)), "claim-mode"),
        (claim(gpu(selectors=[{"cel": {"expression": "true"}}])), "claim-selectors"),
        (claim(gpu(capacity={"cores": "3"})), "claim-capacity"),
        (claim(gpu(capacity={"memory": "much"})), "not-a-quantity"),
        (claim(gpu(capacity={"compute": "130"})), "compute-too-large"),
        (claim(gpu(count=1000)), "too-many-gpus"),
        (claim(gpu(), reserved="other"), "claim-in-use"),
        (ending(claim(gpu())), "claim-ending"),
        (claim(), "claim-empty"),
        (None, "claim-missing"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_refused_by_name(found: ResourceClaim | None, code: str) -> None:
    with pytest.raises(RequestError) as refused:
        claim_asks(pod(), {} if found is None else {"team/c": found})
    assert refused.value.code == code
    assert "'mine'" in str(refused.value)


def test_a_claim_that_is_reserved_for_the_pod_itself_is_its_own() -> None:
    assert claim_asks(pod(), {"team/c": claim(gpu(), reserved="p")})


def test_a_claim_that_ends_while_its_pod_runs_is_its_own() -> None:
    running = msgspec.structs.replace(pod(), spec=msgspec.structs.replace(pod().spec, node_name="n"))
    assert claim_asks(running, {"team/c": ending(claim(gpu(), reserved="p"))})


def test_a_claim_from_a_template_has_the_name_that_kubernetes_gave_it() -> None:
    wanted = {"team/p-mine-x7": claim(gpu())}
    assert claim_asks(pod("p-mine-x7", resourceClaimTemplateName="t"), wanted)
    with pytest.raises(RequestError) as refused:
        claim_asks(pod(resourceClaimTemplateName="t"), wanted)
    assert refused.value.code == "claim-coming"


def test_a_claim_from_a_template_may_be_seen_after_the_pod_that_names_it() -> None:
    """Pods and claims come by two watches. The refusal does not advise creating the claim."""
    with pytest.raises(RequestError, match="is not to be seen yet") as refused:
        claim_asks(pod("p-mine-x7", resourceClaimTemplateName="t"), {})
    assert refused.value.code == "claim-coming"


def test_one_claim_under_two_names_is_refused() -> None:
    """It would be booked twice, and can be allocated once."""
    twice = msgspec.convert(
        {
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "team", "uid": "uid-p"},
            "spec": {"resourceClaims": [{"name": name, "resourceClaimName": "c"} for name in ("a", "b")]},
        },
        Pod,
    )
    with pytest.raises(RequestError, match="claims 'a' and 'b' are the same ResourceClaim team/c") as refused:
        claim_asks(twice, {"team/c": claim(gpu())})
    assert refused.value.code == "claim-twice"
