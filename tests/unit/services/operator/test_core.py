"""What the operator decides from what it sees: which writes, and none where all is in order."""

from __future__ import annotations

import base64
import datetime
import itertools
import json
import random
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from services.operator import certificates as pki
from services.operator.authority import server_names
from services.operator.config import Config
from services.operator.core import Core
from services.operator.messages import Decision, Write
from services.operator.objects import (
    AdmissionPolicy,
    ConfigMap,
    Node,
    NodeMeta,
    NodeSpec,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    Secret,
    Webhook,
    WebhookConfiguration,
)
from shared.model.grant import ContainerGrant, GpuShare, Grant, encode_grant
from shared.model.kube_object import Meta
from shared.model.objects import Taint

NOW_S = 1.8e9
DAY_S = 86400.0


class World:
    """An API server in memory for the core: carries writes out and shows what came of them."""

    def __init__(self, config: Config | None = None) -> None:
        self.core = Core(config or Config())
        self.now_s = NOW_S
        self.entropy = random.Random(1).randbytes
        self.versions = itertools.count(1)
        self.core.seen.put(
            WebhookConfiguration(metadata=Meta(name="kerf-dialects"), webhooks=(Webhook(name="a"), Webhook(name="b")))
        )

    def decide(self) -> Decision:
        return self.core.decide(self.now_s, self.entropy)

    def settle(self) -> list[Write]:
        """Decides and writes until nothing is left to write; returns what was written."""
        done: list[Write] = []
        while writes := self.decide().writes:
            assert len(done) < 50, [write.why for write in writes]
            for write in writes:
                self.carry_out(write)
            done += writes
        return done

    def carry_out(self, write: Write) -> None:
        seen, body = self.core.seen, write.body
        if write.resource.kind == "MutatingWebhookConfiguration":
            assert seen.webhooks is not None
            bundles = {w.name: w.client_config.ca_bundle for w in seen.webhooks.webhooks}
            bundles |= {one["name"]: one["clientConfig"]["caBundle"] for one in body["webhooks"]}
            raw = [{"name": w.name, "clientConfig": {"caBundle": bundles[w.name]}} for w in seen.webhooks.webhooks]
            seen.put(WebhookConfiguration(metadata=seen.webhooks.metadata, webhooks=tuple(map(_webhook, raw))))
            return
        kind: Any = Secret if write.resource.kind == "Secret" else ConfigMap
        store: dict[str, Any] = seen.secrets if kind is Secret else seen.maps
        assert (write.name in store) == (write.method == "PATCH"), write.why
        before = store[write.name].data if write.name in store else {}
        data = {key: value for key, value in (before | body["data"]).items() if value is not None}
        seen.put(kind(metadata=Meta(name=write.name, resource_version=str(next(self.versions))), data=data))

    def lose(self, name: str) -> None:
        self.core.seen.gone(self.core.seen.secrets[name])

    def text(self, secret: str, key: str = "tls.crt") -> str:
        return self.core.seen.secret(secret).text(key)


def _webhook(raw: Any) -> Webhook:
    return msgspec.convert(raw, Webhook)


def test_what_is_in_order_is_not_written() -> None:
    world = World()
    assert world.settle()
    assert world.decide() == Decision()
    assert all(c.status == "True" for c in world.core.conditions if c.type in ("CertificatesReady", "NatsUsersReady"))


def test_a_password_never_changes_and_begins_with_a_letter() -> None:
    world = World()
    world.settle()
    before = world.core.seen.secret("kerf-nats").data
    world.now_s += 1000 * DAY_S
    world.settle()
    assert world.core.seen.secret("kerf-nats").data == before
    of_environment = (value for key, value in before.items() if not key.startswith("nodes_ca"))
    assert all(base64.b64decode(value)[:1].isalpha() for value in of_environment)


def test_passwords_that_users_chose_are_kept() -> None:
    world = World()
    chosen = base64.b64encode(b"mine").decode()
    world.core.seen.put(Secret(metadata=Meta(name="kerf-nats"), data={"watcher": chosen}))
    world.settle()
    assert world.core.seen.secret("kerf-nats").data["watcher"] == chosen
    assert world.core.seen.secret("kerf-nats").text("placement")


def test_a_certificate_is_renewed_when_a_third_of_its_life_is_left() -> None:
    world = World()
    world.settle()
    first = world.text("kerf-admission")
    world.now_s += 59.9 * DAY_S
    world.settle()
    assert world.text("kerf-admission") == first
    world.now_s += 0.2 * DAY_S
    world.settle()
    assert world.text("kerf-admission") != first
    assert world.text("kerf-nats-tls", "ca.crt") == world.core.seen.bundle


def test_a_ca_is_trusted_before_it_signs_and_after_it_signed() -> None:
    """At every moment the bundle that clients have contains the CA of every certificate in use."""
    world = World()
    world.settle()
    end = NOW_S + 4 * 1825 * DAY_S
    signers: dict[str, None] = {}
    trusted_before = ""
    while world.now_s < end:
        world.settle()
        bundle = pki.read_all(world.core.seen.bundle)
        for name in ("kerf-admission", "kerf-nats-tls"):
            leaf = pki.read(world.text(name))
            assert leaf is not None
            assert pki.not_after(leaf) > world.now_s
            (signer,) = [ca for ca in bundle if pki.signed_by(leaf, ca)]
            # A client that has not read the newest bundle trusts it too.
            assert not trusted_before or pki.pems((signer,)) in trusted_before
            signers[pki.pems((signer,))] = None
        trusted_before = world.core.seen.bundle
        world.now_s += 0.5 * DAY_S if len(bundle) > 1 and world.text("kerf-ca", "next.crt") else 5 * DAY_S
    assert len(signers) >= 4


def test_what_is_made_while_a_new_ca_is_only_trusted_is_signed_by_the_old_one() -> None:
    world = World()
    world.settle()
    world.now_s += 1825 * DAY_S * 2 / 3
    world.settle()
    assert world.text("kerf-ca", "next.crt")
    data = world.core.seen.secrets["kerf-admission"].data | {"tls.crt": ""}
    world.core.seen.put(Secret(metadata=Meta(name="kerf-admission"), data=data))
    world.settle()
    leaf, old = pki.read(world.text("kerf-admission")), pki.read(world.text("kerf-ca"))
    assert leaf is not None
    assert old is not None
    assert pki.signed_by(leaf, old)
    assert world.text("kerf-ca", "next.crt")


def test_a_secret_that_is_lost_is_put_back_as_it_was() -> None:
    world = World()
    world.settle()
    for name in ("kerf-nats", "kerf-ca", "kerf-admission", "kerf-nats-tls"):
        before = world.core.seen.secret(name).data
        world.lose(name)
        assert [w.why for w in world.settle() if w.name == name and w.method == "POST"] == [
            f"Secret {name} was put back"
        ]
        assert world.core.seen.secret(name).data == before


def test_a_ca_that_nobody_remembers_is_replaced_without_a_gap() -> None:
    """The operator was restarted meanwhile: clients still trust the old CA, and the certificates in use stay."""
    world = World()
    world.settle()
    other = World()
    for name in ("kerf-nats", "kerf-admission", "kerf-nats-tls"):
        other.core.seen.put(world.core.seen.secrets[name])
    for found in world.core.seen.maps.values():
        other.core.seen.put(found)
    other.settle()
    assert other.text("kerf-admission") == world.text("kerf-admission")
    assert world.core.seen.bundle in other.core.seen.bundle
    assert len(pki.read_all(other.core.seen.bundle)) == 2
    other.now_s += 1.1 * DAY_S
    other.settle()
    leaf, ca = pki.read(other.text("kerf-admission")), pki.read(other.text("kerf-ca"))
    assert leaf is not None
    assert ca is not None
    assert pki.signed_by(leaf, ca)


def test_a_certificate_from_before_the_operator_is_trusted_while_pods_still_serve_it() -> None:
    """The kubelet needs a minute to bring the new one to the webhook's pods; failurePolicy is Fail."""
    own = pki.new_authority(NOW_S - 100 * DAY_S, 365, random.Random(2).randbytes).pem.certificate
    world = World()
    bundle = base64.b64encode(own.encode()).decode()
    raw = [{"name": "a", "clientConfig": {"caBundle": bundle}}, {"name": "b", "clientConfig": {}}]
    world.core.seen.put(WebhookConfiguration(metadata=Meta(name="kerf-dialects"), webhooks=tuple(map(_webhook, raw))))
    world.settle()

    def trusted() -> list[str]:
        assert world.core.seen.webhooks is not None
        return [base64.b64decode(w.client_config.ca_bundle).decode() for w in world.core.seen.webhooks.webhooks]

    assert trusted() == [world.core.seen.bundle + own, world.core.seen.bundle]
    world.now_s += 2 * DAY_S
    world.settle()
    assert trusted() == [world.core.seen.bundle] * 2


def test_a_key_that_does_not_belong_to_its_certificate_is_replaced() -> None:
    world = World()
    world.settle()
    mixed = world.core.seen.secrets["kerf-admission"].data | {
        "tls.key": world.core.seen.secrets["kerf-nats-tls"].data["tls.key"]
    }
    world.core.seen.put(Secret(metadata=Meta(name="kerf-admission"), data=mixed))
    (write,) = world.settle()
    assert write.why == "Secret kerf-admission was changed: a new certificate, because its key did not belong to it"


def test_the_webhooks_certificate_is_none_of_a_client_and_one_of_before_is_replaced() -> None:
    """NATS servers let each other in by one of their CA."""
    world = World()
    world.settle()

    def uses(name: str) -> set[x509.ObjectIdentifier]:
        found = pki.read(world.core.seen.secret(name).text("tls.crt"))
        assert found is not None
        return set(found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)

    assert uses("kerf-admission") == {ExtendedKeyUsageOID.SERVER_AUTH}
    assert uses("kerf-nats-tls") == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    ca = world.core.seen.secret("kerf-ca")
    signer = pki.authority(ca.text("tls.crt"), ca.text("tls.key"))
    assert signer is not None
    hosts = server_names(world.core.config)["kerf-admission"]
    before = pki.issue(signer, hosts, NOW_S, 90, world.entropy, client=True)
    data = {"tls.crt": before.certificate, "tls.key": before.key}
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    had = world.core.seen.secrets["kerf-admission"].data
    world.core.seen.put(Secret(metadata=Meta(name="kerf-admission"), data=had | encoded))
    (write,) = world.settle()
    assert write.why == "Secret kerf-admission was changed: a new certificate, because it was one for clients too"
    assert uses("kerf-admission") == {ExtendedKeyUsageOID.SERVER_AUTH}


@pytest.mark.parametrize("mode", ["cert-manager", "existing"])
def test_certificates_of_others_are_watched_and_their_ca_is_passed_on(mode: Any) -> None:
    made = World()
    made.settle()
    world = World(Config(certificates=mode))
    for name in ("kerf-admission", "kerf-nats-tls"):
        world.core.seen.put(made.core.seen.secrets[name])
    assert {write.name for write in world.settle()} == {
        "kerf-nats", "kerf-ca", "kerf-schedulers", "kerf-status", "kerf-dialects",
    }  # fmt: skip
    assert world.core.seen.bundle == made.core.seen.bundle
    world.now_s += 80 * DAY_S
    world.decide()
    (condition,) = [c for c in world.core.conditions if c.type == "CertificatesReady"]
    assert condition.status == "False"
    assert "certificate kerf-admission ends in 10.0 days; renew it" in condition.message


@pytest.mark.parametrize(("days", "left", "late"), [(30.0, 9.9, False), (30.0, 7.4, True), (90.0, 14.1, False)])
def test_a_short_certificate_of_others_is_not_reported_while_it_is_renewed(
    days: float, left: float, late: bool
) -> None:
    """cert-manager renews a certificate when a third of its life is left: of 30 days that is 10 before its end."""
    made = World(Config(certificate_days=days))
    made.settle()
    world = World(Config(certificates="cert-manager"))
    for name in ("kerf-admission", "kerf-nats-tls"):
        world.core.seen.put(made.core.seen.secrets[name])
    world.now_s += (days - left) * DAY_S
    world.decide()
    (condition,) = [c for c in world.core.conditions if c.type == "CertificatesReady"]
    assert condition.status == ("False" if late else "True"), condition.message


def test_each_certificates_beginning_and_end_are_exported() -> None:
    world = World()
    world.settle()
    days = {"kerf-admission": 90, "kerf-nats-tls": 90, "kerf-ca": 1825}
    ends, begins = world.core.seen.ends(), world.core.seen.begins()
    assert begins.keys() == ends.keys() == {(name,) for name in days}
    for name, life in days.items():
        assert ends[name,] - begins[name,] == life * DAY_S + pki.BACKDATED_S


def test_an_external_nats_gets_neither_users_nor_a_certificate() -> None:
    world = World(Config(nats_url=""))
    assert {write.name for write in world.settle()}.isdisjoint({"kerf-nats", "kerf-nats-tls"})


@pytest.mark.parametrize("left_behind", [True, False])
@pytest.mark.parametrize("certificates", ["bootstrap", "cert-manager", "existing"])
def test_the_ca_of_a_nats_of_others_stays_and_is_that_of_nats_alone(certificates: Any, left_behind: bool) -> None:
    """ConfigMap kerf-ca is the administrator's then, also where a Secret of former servers of Kerf's is still there."""
    world = World(Config(nats_url="", certificates=certificates))
    foreign = pki.new_authority(NOW_S - DAY_S, 3650, random.Random(2).randbytes).pem.certificate
    theirs = ConfigMap(metadata=Meta(name="kerf-ca"), data={"ca.crt": foreign})
    world.core.seen.put(theirs)
    other = pki.new_authority(NOW_S - DAY_S, 3650, random.Random(3).randbytes).pem.certificate
    data = {"ca.crt": base64.b64encode(other.encode()).decode()}
    if certificates != "bootstrap":
        world.core.seen.put(Secret(metadata=Meta(name="kerf-admission"), data=data))
    if left_behind:
        world.core.seen.put(Secret(metadata=Meta(name="kerf-nats-tls"), data=data))
    for at_s in (0.0, 10.0, 25 * 3600.0):
        world.now_s = NOW_S + at_s
        written = world.settle()
        assert [write.why for write in written if (write.resource.kind, write.name) == ("ConfigMap", "kerf-ca")] == []
        assert world.core.seen.maps["kerf-ca"] == theirs
        assert world.core.seen.webhooks is not None
        for webhook in world.core.seen.webhooks.webhooks:
            trusted = base64.b64decode(webhook.client_config.ca_bundle).decode()
            assert trusted
            assert foreign not in trusted
        assert foreign not in world.text("kerf-ca", "previous.crt")


def test_without_a_nats_of_kerfs_no_ca_for_its_clients_is_made() -> None:
    world = World(Config(nats_url=""))
    assert [w.why for w in world.settle() if (w.resource.kind, w.name) == ("ConfigMap", "kerf-ca")] == []


def test_a_problem_is_told_once_and_its_time_stays() -> None:
    world = World()
    first = world.decide()
    assert [n.reason for n in first.notices].count("NoNodes") == 1
    world.settle()
    status = json.loads(world.core.seen.maps["kerf-status"].data["conditions"])
    world.now_s += 60
    again = world.decide()
    assert not [n for n in again.notices if n.reason == "NoNodes"]
    assert {c["lastTransitionTime"] for c in status} == {"2027-01-15T08:00:00Z"}
    assert not again.writes


def test_the_first_nodes_are_enrolled_some_at_a_time() -> None:
    world = World()
    world.settle()
    for number in range(120):
        labels = {"kerf.dev/managed": "true"}
        world.core.seen.put(Node(metadata=Meta(name=f"n{number}", labels=labels)))
    counts = []
    while world.core.unfinished:
        counts.append(len([w for w in world.decide().writes if w.resource.kind == "Node"]))
    assert counts == [50, 50, 20]


def test_schedulers_of_the_settings_are_added_to_the_list_and_none_is_taken_out() -> None:
    volcano, mine = "system:serviceaccount:volcano-system:volcano-scheduler", "system:serviceaccount:team:mine"
    world = World(Config(schedulers=("system:kube-scheduler", volcano)))
    world.settle()
    assert world.core.seen.maps["kerf-schedulers"].data["accounts"] == f"system:kube-scheduler {volcano}"
    world = World(Config(schedulers=(volcano,)))
    world.core.seen.put(ConfigMap(metadata=Meta(name="kerf-schedulers"), data={"accounts": f"{mine}  x"}))
    world.settle()
    assert world.core.seen.maps["kerf-schedulers"].data["accounts"] == f"{mine} x {volcano}"
    assert not world.decide().writes


@pytest.mark.parametrize("certificates", ["cert-manager", "existing"])
def test_an_earlier_ca_of_others_is_trusted_beside_a_new_one_for_a_while(certificates: Any) -> None:
    """Servers go on with the certificate that they have until the kubelet has brought them the next."""
    world = World(Config(certificates=certificates, authority_overlap_s=3600.0))
    before, after = (pki.pems((pki.new_authority(NOW_S, 100.0, world.entropy).certificate,)) for _ in range(2))

    def comes(bundle: str) -> None:
        for name in ("kerf-admission", "kerf-nats-tls"):
            data = {"ca.crt": base64.b64encode(bundle.encode()).decode()}
            world.core.seen.put(Secret(metadata=Meta(name=name), data=data))
        world.settle()

    def trusted() -> list[set[str]]:
        assert world.core.seen.webhooks is not None
        hook = base64.b64decode(world.core.seen.webhooks.webhooks[0].client_config.ca_bundle).decode()
        return [{pki.pems((ca,)) for ca in pki.read_all(bundle)} for bundle in (world.core.seen.bundle, hook)]

    comes(before)
    assert trusted() == [{before}] * 2
    world.now_s += DAY_S
    comes(after)
    assert trusted() == [{before, after}] * 2
    world.now_s += 3601.0
    world.settle()
    assert trusted() == [{after}] * 2


ENROLLED = {"kerf.dev/enrolled": "true"}
LEAVING = tuple(Taint(key=f"kerf.dev/{key}", effect="NoSchedule") for key in ("managed", "leaving"))


def node_writes(world: World) -> list[dict[str, Any]]:
    return [write.body for write in world.decide().writes if write.resource.kind == "Node"]


def test_a_node_that_leaves_keeps_its_agent_until_no_binding_comes_any_more() -> None:
    world = World()
    world.settle()
    leaving = Node(metadata=NodeMeta(name="n", labels=ENROLLED), spec=NodeSpec(taints=LEAVING))
    world.core.seen.put(leaving)
    assert node_writes(world) == []
    world.now_s += world.core.config.leaving_s
    (write,) = node_writes(world)
    assert write["metadata"]["labels"] == {"kerf.dev/enrolled": None}


def test_a_node_that_leaves_is_looked_at_until_its_agent_has_ended() -> None:
    world = World()
    world.settle()
    meta = Meta(name="agent", namespace="kerf-system", uid="u", labels={"app.kubernetes.io/part-of": "kerf"})
    agent = Pod(metadata=meta, spec=PodSpec(node_name="n", service_account_name="kerf-node-agent"))
    others = msgspec.structs.replace(agent, metadata=msgspec.structs.replace(meta, namespace="team", uid="v"))
    world.core.seen.put(agent)
    world.core.seen.put(others)
    world.core.seen.put(Node(metadata=NodeMeta(name="n"), spec=NodeSpec(taints=LEAVING)))
    node_writes(world)
    world.now_s += world.core.config.leaving_s
    assert node_writes(world) == []
    world.core.seen.gone(agent)
    (write,) = node_writes(world)
    assert write["spec"] == {"taints": None}
    world.core.seen.put(Node(metadata=NodeMeta(name="n")))
    assert node_writes(world) == node_writes(world) == []


def test_a_node_that_serves_its_gpu_to_another_one_is_in_use() -> None:
    world = World()
    share = GpuShare(node="gpu-1", uuid="G0", memory_mib=1, compute_milli=0)
    for name, strategy in (("far", "remote"), ("near", "advisory")):
        part = ContainerGrant(strategy=strategy, gpus=(share,))  # type: ignore[arg-type]
        notes = {"kerf.dev/grant": encode_grant(Grant(grant_id=name, term=1, containers={"c": part}))}
        at = "cpu-1" if name == "far" else "gpu-1"
        world.core.seen.put(Pod(metadata=Meta(name=name, uid=name, annotations=notes), spec=PodSpec(node_name=at)))
    assert world.core.seen.grants == {"cpu-1": 1, "gpu-1": 2}
    damaged = Meta(name="x", uid="x", annotations={"kerf.dev/grant": '{"strategy":"remote"'})
    world.core.seen.put(Pod(metadata=damaged, spec=PodSpec(node_name="cpu-1")))
    assert world.core.seen.grants == {"cpu-1": 2, "gpu-1": 2}


def test_pods_of_kerfs_that_stay_not_ready_are_reported() -> None:
    """One that has just begun, one that ends, and pods of others are not."""
    world = World()
    world.now_s = datetime.datetime(2026, 1, 1, 12, 1, 1, tzinfo=datetime.UTC).timestamp()
    kerfs = {"app.kubernetes.io/part-of": "kerf"}
    for name, since, labels, leaving in (
        ("kerf-placement-a", "2026-01-01T12:00:00Z", kerfs, None),
        ("kerf-placement-b", "2026-01-01T12:00:30Z", kerfs, None),
        ("kerf-placement-c", "2026-01-01T11:00:00Z", kerfs, "2026-01-01T12:00:00Z"),
        ("other", "2026-01-01T11:00:00Z", {}, None),
    ):
        meta = Meta(name=name, namespace="kerf-system", uid=name, labels=labels, deletion_timestamp=leaving)
        ready = PodCondition(type="Ready", status="False", last_transition_time=since)
        world.core.seen.put(Pod(metadata=meta, status=PodStatus(phase="Running", conditions=(ready,))))
    world.decide()
    (condition,) = [c for c in world.core.conditions if c.type == "PodsReady"]
    assert (condition.status, condition.reason) == ("False", "PodsNotReady")
    assert "pods kerf-placement-a are not ready for more than 60 s" in condition.message
    world.core.seen.gone(next(pod for pod in world.core.seen.own.values() if pod.metadata.name == "kerf-placement-a"))
    world.decide()
    (condition,) = [c for c in world.core.conditions if c.type == "PodsReady"]
    assert condition.status == "True"


def test_the_status_says_what_completes_pods_that_ask_in_kerfs_own_words() -> None:
    world = World()

    def said() -> tuple[str, str]:
        world.decide()
        (condition,) = [c for c in world.core.conditions if c.type == "CanonicalAdmission"]
        return condition.status, condition.reason

    assert said() == ("False", "NotAdmitted")
    hooks = (Webhook(name="a"), Webhook(name="canonical.kerf.dev"))
    world.core.seen.put(WebhookConfiguration(metadata=Meta(name="kerf-dialects"), webhooks=hooks))
    assert said() == ("True", "ByWebhook")
    policy = AdmissionPolicy(metadata=Meta(name="kerf-canonical"))
    world.core.seen.put(policy)
    assert said() == ("True", "ByPolicy")
    world.core.seen.gone(policy)
    assert said() == ("True", "ByWebhook")
