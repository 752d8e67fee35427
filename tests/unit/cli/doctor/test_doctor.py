"""The checks of `kerf doctor`, each on a site that is well and on one that is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlparse

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cli.doctor import CHECKS, examine
from cli.doctor.base import About, CannotLook, Finding, Site
from cli.doctor.cdi import Cdi, number
from cli.doctor.certificates import judge
from cli.doctor.clocks import Clocks
from cli.doctor.drivers import Drivers
from cli.doctor.kubernetes import Kubernetes
from cli.doctor.rights import Rights
from cli.doctor.services import Services
from cli.doctor.versions import Versions
from shared.bus.nats_bus import NatsBus
from shared.contracts.queries import AboutAnswer, InspectGpu, InspectNode
from shared.version import version

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def about(service: str, *, ahead_ms: int = 0, **fields: Any) -> About:
    return About(AboutAnswer(service=service, instance=f"{service}-0", **({"version": version()} | fields)), ahead_ms)


def site(**fields: Any) -> Site:
    """With a bus that is not asked anything here."""
    bus: Any = object.__new__(NatsBus)
    return Site(url="nats://reader:x@h", **({"user": "reader", "bus": bus, "kube_error": "no kubeconfig"} | fields))


def node(name: str, **fields: Any) -> InspectNode:
    gpu = InspectGpu(
        uuid="GPU-1",
        index=0,
        model="NVIDIA-H200",
        state=fields.pop("state", "healthy"),
        memory_mib=1,
        allocated_memory_mib=0,
        allocated_compute_milli=0,
    )
    return InspectNode(node=name, gpus=(gpu,), **({"driver_version": "580.65.06"} | fields))


def statuses(findings: list[Finding]) -> list[str]:
    return [finding.status for finding in findings]


async def test_what_cannot_be_looked_at_is_a_warning_that_says_why() -> None:
    findings = await examine(site(user="", bus=None, bus_error="no NATS at x"))
    assert {finding.check for finding in findings} == {check.name for check in CHECKS}
    assert [finding.check for finding in findings if finding.status == "fail"] == ["nats"]
    assert all(finding.do for finding in findings if finding.status != "ok")


@pytest.mark.parametrize(
    ("user", "status", "says"),
    [
        ("reader", "ok", "may ask all questions, and not cordon or drain"),
        ("operator", "ok", "and cordon and drain"),
        ("placement", "warn", "may not ask why"),
        ("alice", "warn", "is not one of Kerf's"),
        ("", "warn", "has no NATS user"),
    ],
)
async def test_rights_are_those_of_the_nats_user(user: str, status: str, says: str) -> None:
    (finding,) = await Rights().run(site(user=user))
    assert (finding.status, says in finding.text) == (status, True), finding


async def test_a_missing_service_and_a_service_that_is_not_well_are_failures() -> None:
    well = (about("placement"), about("watcher"), about("metrics"), about("node_agent"))
    assert statuses(await Services().run(site(services=well))) == ["ok"]
    ill = (about("placement", problems={"log": "no NATS"}), about("watcher"))
    findings = await Services().run(site(services=ill))
    assert [finding.text for finding in findings] == [
        "no metrics is connected to this NATS",
        "placement placement-0 is not well: log: no NATS",
    ]


async def test_versions_that_differ_are_named() -> None:
    assert statuses(await Versions().run(site(services=(about("placement"),)))) == ["ok"]
    (finding,) = await Versions().run(site(services=(about("placement", version="0.0.9"),)))
    assert (finding.status, "0.0.9: placement" in finding.text) == ("warn", True)


async def test_clocks_that_are_off_are_named_with_the_seconds() -> None:
    assert statuses(await Clocks().run(site(services=(about("placement", ahead_ms=999),)))) == ["ok"]
    findings = await Clocks().run(site(services=(about("a", ahead_ms=1500), about("b", ahead_ms=-31_000))))
    assert statuses(findings) == ["warn", "fail"]
    assert "is 1.5 s ahead of" in findings[0].text
    assert "is 31.0 s behind" in findings[1].text


async def test_drivers_are_counted_and_silent_agents_and_ill_gpus_named() -> None:
    (fine,) = await Drivers().run(site(nodes=(node("a"), node("b"), node("c", driver_version="550.1"))))
    assert fine.text == "nodes: 3, drivers: 550.1 on 1, 580.65.06 on 2"
    findings = await Drivers().run(
        site(nodes=(node("a", synced=False), node("b", state="hung"), node("c", driver_version="")))
    )
    assert statuses(findings) == ["fail", "warn", "fail", "ok"]
    assert statuses(await Drivers().run(site())) == ["warn"]


async def test_placements_of_which_none_leads_are_a_failure() -> None:
    """Each of them may be well: after a while without a leader its own part says so, and is no problem."""
    services = tuple(about(name) for name in ("placement", "watcher", "metrics"))
    (finding,) = await Services().run(site(services=services, leaderless=True, nodes_error="no service answers"))
    assert (finding.status, finding.text) == (
        "fail",
        "no placement leads: 1 connected, and none answers; nothing is placed",
    )
    assert statuses(await Services().run(site(services=services))) == ["ok"]


class Odd:
    """An API server that answers with what no check expects."""

    async def request(self, method: str, path: str, body: bytes = b"", **_: Any) -> Any:
        from shared.kube.transport import Response

        if method == "POST":
            return Response(429, b"Too many requests, please try again later.")
        return Response(200, msgspec.json.encode({"webhooks": [], "items": [{}], "resources": []}))


async def test_an_answer_of_an_unexpected_form_ends_one_check_and_not_the_others() -> None:
    findings = await examine(site(kube=Odd(), nodes=(node("a"),), services=(about("placement"),)))
    odd = {finding.check: finding.text for finding in findings if "unexpected form" in finding.text}
    assert odd.keys() >= {"cdi", "certificates"}
    assert all(text.startswith("not checked: ") for text in odd.values())
    assert {finding.check for finding in findings} == {check.name for check in CHECKS}


async def test_a_dry_run_that_the_api_server_has_no_time_for_is_not_checked() -> None:
    with pytest.raises(CannotLook, match="answers 429 to a dry run: Too many requests"):
        await Kubernetes()._probe(site(kube=Odd()))


@pytest.mark.parametrize(("updated", "since_s", "warns"), [(95, 3600, True), (95, 60, False), (100, 3600, False)])
def test_an_agents_rollout_that_does_not_end_is_named(updated: int, since_s: int, warns: bool) -> None:
    changed = (datetime.now(UTC) - timedelta(seconds=since_s)).isoformat()
    managed = [{"time": changed}, {"time": datetime.now(UTC).isoformat(), "subresource": "status"}]
    status = {"desiredNumberScheduled": 100, "updatedNumberScheduled": updated}
    findings = Kubernetes()._rollout({"metadata": {"managedFields": managed}, "status": status})
    assert [(f.status, f.text.partition(":")[0]) for f in findings] == (
        [("warn", "5 of 100 nodes still have an earlier agent")] if warns else []
    )


class Api:
    """An API server that lists these nodes, two on a page."""

    def __init__(self, *nodes: tuple[str, str]) -> None:
        self.nodes = nodes

    async def request(self, method: str, path: str, body: bytes = b"", **_: Any) -> Any:
        from shared.kube.transport import Response

        items = [
            {
                "metadata": {"name": f"n{i}"},
                "status": {"nodeInfo": {"containerRuntimeVersion": runtime, "kubeletVersion": kubelet}},
            }
            for i, (runtime, kubelet) in enumerate(self.nodes)
        ]
        query = parse_qs(urlparse(path).query)
        assert query["labelSelector"] == ["kerf.dev/managed=true"]
        first = int(query.get("continue", ["0"])[0])
        more = str(first + 2) if first + 2 < len(items) else ""
        return Response(200, msgspec.json.encode({"items": items[first : first + 2], "metadata": {"continue": more}}))


async def test_cdi_needs_a_runtime_and_a_kubelet_that_have_it() -> None:
    api: Any = Api(("containerd://2.1.4", "v1.34.1"), ("cri-o://1.31.0", "v1.31.2-gke.1"))
    assert statuses(await Cdi().run(site(kube=api))) == ["ok"]
    api = Api(("containerd://1.7.29", "v1.30.0"), ("containerd://1.6.20", "v1.30.0"), ("docker://24.0", "v1.25.1"))
    findings = await Cdi().run(site(kube=api))
    assert statuses(findings) == ["warn", "fail", "fail"]
    assert "enable_cdi" in findings[0].do
    assert number("nonsense") == (0, 0)


def certificate(days: float, life: float = 400) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kerf")])
    key = ec.generate_private_key(ec.SECP256R1())
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - timedelta(days=life - days))
        .not_valid_after(NOW + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )


@pytest.mark.parametrize(
    ("days", "status", "says"),
    [(90, "ok", "90 more days"), (20, "warn", "20 more days"), (2, "fail", "2 more days"), (-1, "fail", "has expired")],
)
def test_certificates_are_judged_by_the_days_that_are_left(days: int, status: str, says: str) -> None:
    finding = judge("the webhook's CA", certificate(days), NOW)
    assert (finding.status, says in finding.text, bool(finding.do)) == (status, True, status != "ok")


@pytest.mark.parametrize(
    ("life", "left", "status"), [(30, 9, "ok"), (30, 7, "warn"), (10, 2.6, "ok"), (10, 2.4, "warn"), (10, 1.2, "fail")]
)
def test_a_short_certificate_is_no_problem_while_it_is_renewed(life: float, left: float, status: str) -> None:
    """Which begins when a third of its life is left."""
    assert judge("the NATS server's certificate", certificate(left, life), NOW).status == status


@pytest.mark.parametrize(("host", "remedy"), [("", "give the account"), ("10.0.0.1", "on a machine with a kubeconfig")])
async def test_what_the_api_server_forbids_says_whose_right_is_missing(
    monkeypatch: pytest.MonkeyPatch, host: str, remedy: str
) -> None:
    """In a pod, as the krew plugin has it, no option of the command helps."""

    class Forbids:
        async def request(self, _method: str, _path: str) -> Any:
            return SimpleNamespace(status=403, body=b"{}")

    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    if host:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    findings = await examine(site(bus=None, bus_error="no NATS at x", kube=Forbids()))
    (cdi,) = (finding for finding in findings if finding.check == "cdi")
    assert cdi.status == "warn"
    assert remedy in cdi.do
