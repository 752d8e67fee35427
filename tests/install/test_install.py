"""The commands of docs/install.md, on a cluster: three to the first GPU pod, upgrade, rollback, and nothing left.

The tests follow each other.
"""

from __future__ import annotations

import base64
import json
import re
import time
from pathlib import Path
from typing import Any

from tests.install.cluster import (
    GPUSHARE_IMAGE,
    NEXT_TAG,
    NODE_NAME,
    CommandError,
    InstallCluster,
    container,
    ready,
)
from tools.sandbox.inside import GPUS
from tools.sandbox.node import WORKLOAD

INSTALL_WITHIN_S = 90.0
PAGE = Path(__file__).resolve().parents[2] / "docs/install.md"
DRIVER = {
    "KERF_FAKE_NVML_STATE": "/host/run/nvidia/machine",
    "KERF_FAKE_CUDA_DEVICES": str(GPUS),
    "KERF_NODE_AGENT_DRIVER_ROOT": "/run/nvidia/driver",
}
"""The agent's further variables: where the fake driver is, as a GPU operator's driver container would be."""
VALUES = " ".join(f"--set-string=agent.env.{name}={value}" for name, value in DRIVER.items())
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL) for line in block.splitlines()
]
INSTALL, ENROL, FIRST_POD, STATUS, REFUSE, UPGRADE, ROLLBACK, UNINSTALL = COMMANDS
FIRM = {"kerf.dev/isolation": "firm"}


def report(**figures: object) -> None:
    """Shows what was measured; `make test-install` prints it. No test asserts on it."""
    print(json.dumps(figures))  # noqa: T201


def run_pod(
    cluster: InstallCluster, name: str, spec: dict[str, Any], annotations: dict[str, str] | None = None
) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations or {}},
        "spec": {"terminationGracePeriodSeconds": 1, **spec},
    }
    cluster.kubectl("apply", "--filename=-", given=json.dumps(document))


def wait_running(cluster: InstallCluster, *names: str, within_s: float = 60.0) -> None:
    def running() -> bool:
        pods = {pod["metadata"]["name"]: pod for pod in cluster.get("pods", "", "default")}
        return all(name in pods and pods[name]["status"]["phase"] == "Running" and ready(pods[name]) for name in names)

    try:
        cluster.eventually(running, within_s=within_s, what=f"{names} run")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{cluster.kubectl('describe', 'pods', '--namespace=default')}") from None


def test_one_command_installs_and_every_pod_is_ready(cluster: InstallCluster) -> None:
    begun = time.monotonic()
    cluster.shell(f"{INSTALL} {VALUES}")
    cluster.wait_ready(INSTALL_WITHIN_S - (time.monotonic() - begun))
    report(pods_ready_s=round(time.monotonic() - begun, 1))
    assert cluster.restarts() == {}
    names = {pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in cluster.kerf_pods()}
    assert names == {
        f"kerf-{s}" for s in ("nats", "watcher", "placement", "preemptor", "admission", "metrics", "operator")
    }


def test_the_second_command_enrols_a_node(cluster: InstallCluster) -> None:
    cluster.shell(ENROL.replace("NODE", NODE_NAME))

    def enrolled() -> bool:
        node = cluster.get("node", NODE_NAME)
        taints = {(taint["key"], taint["effect"]) for taint in node["spec"].get("taints", ())}
        return ("kerf.dev/managed", "NoSchedule") in taints and int(
            node["status"]["allocatable"].get("kerf.dev/slot", 0)
        ) > 0

    cluster.eventually(enrolled, within_s=60, what="the node has Kerf's taint and its slots")


def test_the_third_command_runs_a_gpu_pod(cluster: InstallCluster) -> None:
    cluster.shell(FIRST_POD)
    wait_running(cluster, "first")
    pod = cluster.get("pod", "first", "default")
    grant = json.loads(pod["metadata"]["annotations"]["kerf.dev/grant"])
    assert (pod["spec"]["nodeName"], grant["containers"]["main"]["gpus"][0]["memory_mib"]) == (NODE_NAME, 8192)


def test_a_gpushare_pod_and_a_firm_pod_run(cluster: InstallCluster) -> None:
    limits = {"aliyun.com/gpu-mem": "3"}
    run_pod(
        cluster,
        "gpushare",
        {"containers": [{"name": "main", "image": GPUSHARE_IMAGE, "resources": {"limits": limits}}]},
    )
    run_pod(cluster, "firm", {"containers": [container(gpu_memory="2Gi", gpu_compute="30")]}, FIRM)
    wait_running(cluster, "gpushare", "firm")
    grant = json.loads(cluster.get("pod", "firm", "default")["metadata"]["annotations"]["kerf.dev/grant"])
    assert grant["containers"]["main"]["strategy"] == "interposer"


def test_all_of_kerf_comes_back_on_a_single_enrolled_node(cluster: InstallCluster) -> None:
    before = {pod["metadata"]["uid"] for pod in cluster.kerf_pods()}
    cluster.kubectl("delete", "pods", "--namespace=kerf-system", "--all", "--wait=false", "--grace-period=5")

    def replaced() -> bool:
        pods = cluster.kerf_pods()
        return bool(pods) and not before & {pod["metadata"]["uid"] for pod in pods} and all(map(ready, pods))

    cluster.eventually(replaced, within_s=120, what="every pod of Kerf's is replaced and ready")
    run_pod(cluster, "after", {"containers": [container(gpu_memory="1Gi")]})
    wait_running(cluster, "after", "first", "gpushare", "firm")


def test_a_deleted_secret_and_a_removed_ca_bundle_heal(cluster: InstallCluster) -> None:
    cluster.kubectl("delete", "secret", "kerf-admission", "--namespace=kerf-system")
    configuration = "mutatingwebhookconfiguration/kerf-dialects"
    cluster.kubectl(
        "patch", configuration, "--type=json", '--patch=[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]'
    )

    def healed() -> bool:
        if not cluster.exists("secret", "kerf-admission"):
            return False
        authority = base64.b64decode(cluster.get("secret", "kerf-admission")["data"]["ca.crt"])
        hooks = cluster.get("mutatingwebhookconfiguration", "kerf-dialects")["webhooks"]
        return all(authority.strip() in base64.b64decode(hook["clientConfig"].get("caBundle", "")) for hook in hooks)

    cluster.eventually(healed, within_s=10, what="Secret and caBundle are there again")


class Stream:
    """Pods one after the other, each deleted once it is bound. The longest wait is the installation's gap."""

    def __init__(self, cluster: InstallCluster, prefix: str) -> None:
        self._cluster, self._prefix = cluster, prefix
        self.waits_s: list[float] = []

    def bind_one(self) -> None:
        name = f"{self._prefix}-{len(self.waits_s)}"
        begun = time.monotonic()
        run_pod(self._cluster, name, {"containers": [container(gpu_memory="64Mi")]})

        def bound() -> bool:
            return bool(self._cluster.get("pod", name, "default")["spec"].get("nodeName"))

        self._cluster.eventually(bound, within_s=60, what=f"pod {name} is bound")
        self.waits_s.append(time.monotonic() - begun)
        self._cluster.kubectl("delete", "pod", name, "--namespace=default", "--grace-period=0", "--force")


def user_data(cluster: InstallCluster) -> dict[str, Any]:
    """What an upgrade must not touch."""
    hooks = cluster.get("mutatingwebhookconfiguration", "kerf-dialects")["webhooks"]
    return {
        "schedulers": cluster.get("configmap", "kerf-schedulers")["data"],
        "passwords": cluster.get("secret", "kerf-nats")["data"],
        "authority": cluster.get("secret", "kerf-ca")["data"],
        "bundles": [hook["clientConfig"]["caBundle"] for hook in hooks],
    }


def test_the_status_says_that_all_is_well(cluster: InstallCluster) -> None:
    cluster.eventually(lambda: cluster.shell(STATUS) == "Kerf is in order", within_s=60, what="the status is good")


def test_accounts_that_are_not_listed_are_warned_first_and_refused_on_request(cluster: InstallCluster) -> None:
    def refused() -> str:
        """What the API server says of a Binding by an account that is not a scheduler's."""
        run_pod(cluster, "foreign", {"schedulerName": "other", "containers": [{"name": "main", "image": WORKLOAD}]})
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "foreign"},
            "target": {"name": "nowhere"},
        }
        status, answer = cluster.plane.request(
            "POST", "/api/v1/namespaces/default/pods/foreign/binding?dryRun=All", binding
        )
        return "" if status == 201 else answer.decode()

    assert refused() == ""
    cluster.shell(REFUSE)
    cluster.eventually(lambda: "[foreign-binding]" in refused(), within_s=30, what="the policy refuses")
    cluster.kubectl("delete", "pod", "foreign", "--namespace=default", "--grace-period=0", "--force")
    cluster.wait_ready(60)


def test_an_upgrade_keeps_what_is_the_users_and_pods_are_bound_meanwhile(cluster: InstallCluster) -> None:
    listed = "system:kube-scheduler system:serviceaccount:volcano-system:volcano-scheduler"
    cluster.kubectl(
        "patch", "configmap", "kerf-schedulers", "--namespace=kerf-system", "--type=merge",
        f"--patch={json.dumps({'data': {'accounts': listed}})}",
    )  # fmt: skip
    before = user_data(cluster)
    changes(cluster, "upgrade", UPGRADE.replace("TAG", NEXT_TAG), f"docker.io/library/kerf:{NEXT_TAG}")
    assert user_data(cluster) == before


def test_a_rollback_does_too(cluster: InstallCluster) -> None:
    before = user_data(cluster)
    changes(cluster, "rollback", ROLLBACK, "docker.io/library/kerf:0.2.0")
    assert user_data(cluster) == before


def test_new_settings_of_the_nats_servers_restart_them(cluster: InstallCluster) -> None:
    """The operator does it: the StatefulSet replaces no pod itself."""
    before = nats_servers(cluster)
    cluster.shell(f"{UPGRADE.replace('TAG', NEXT_TAG)} --set=nats.resources.requests.cpu=150m")

    def restarted() -> bool:
        found = nats_servers(cluster)
        return len(found) == len(before) and not before & found and all(map(ready, cluster.kerf_pods()))

    cluster.eventually(restarted, within_s=120, what="the NATS server is replaced and ready")
    cluster.eventually(lambda: cluster.shell(STATUS) == "Kerf is in order", within_s=60, what="the status is good")


def nats_servers(cluster: InstallCluster) -> set[str]:
    """The UIDs of their pods."""
    return {p["metadata"]["uid"] for p in cluster.kerf_pods() if p["metadata"]["name"].startswith("kerf-nats-")}


def changes(cluster: InstallCluster, prefix: str, command: str, image: str) -> None:
    """Runs helm, and binds pods until every pod of Kerf's has this image and is ready. NATS goes on as it is."""
    servers = nats_servers(cluster)
    stream = Stream(cluster, prefix)
    stream.bind_one()
    cluster.shell(command)

    def changed() -> bool:
        stream.bind_one()
        pods = [pod for pod in cluster.kerf_pods() if pod["metadata"]["uid"] not in servers]
        images = {c["image"] for pod in pods for c in pod["spec"]["containers"]}
        return images == {image} and all(ready(p) and "deletionTimestamp" not in p["metadata"] for p in pods)

    cluster.eventually(changed, within_s=240, what=f"all of Kerf runs {image}")
    stream.bind_one()
    assert nats_servers(cluster) == servers
    waits_s = sorted(stream.waits_s)
    report(change=prefix, pods_bound=len(waits_s), longest_waits_s=[round(wait, 1) for wait in waits_s[-3:]])


def test_uninstalling_leaves_nothing(cluster: InstallCluster) -> None:
    cluster.kubectl("delete", "pods", "--namespace=default", "--all", "--grace-period=0", "--force")
    try:
        cluster.shell(UNINSTALL)
    except CommandError as error:
        log = cluster.kubectl("logs", "--namespace=kerf-system", "--selector=app.kubernetes.io/name=kerf-uninstall")
        raise AssertionError(f"{error}\n{log}") from None
    left = [
        f"{kind}/{item['metadata']['name']}"
        for kind in (
            "deployments", "daemonsets", "statefulsets", "jobs", "services", "secrets", "leases.coordination.k8s.io",
            "poddisruptionbudgets", "networkpolicies", "roles", "rolebindings",
        )
        for item in cluster.get(kind)
    ]  # fmt: skip
    left += [
        f"configmaps/{m['metadata']['name']}"
        for m in cluster.get("configmaps")
        if m["metadata"]["name"].startswith("kerf")
    ]
    left += [a["metadata"]["name"] for a in cluster.get("serviceaccounts") if a["metadata"]["name"].startswith("kerf")]
    for kind in (
        "clusterroles", "clusterrolebindings", "mutatingwebhookconfigurations", "validatingadmissionpolicies",
        "validatingadmissionpolicybindings", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings",
        "deviceclasses",
    ):  # fmt: skip
        left += [f"{kind}/{i['metadata']['name']}" for i in cluster.get(kind) if "kerf" in i["metadata"]["name"]]
    # The administrator's own list (a test above has changed it) is left, as the job says.
    assert left == ["configmaps/kerf-schedulers"]
    node = cluster.get("node", NODE_NAME)
    assert [t for t in node["spec"].get("taints", ()) if "kerf.dev" in t["key"]] == []
    # The label by which its owner enrolled the node is the owner's.
    assert [k for k in node["metadata"]["labels"] if "kerf.dev" in k and k != "kerf.dev/managed"] == []
    # Data outlives the release, and is named in what the chart prints.
    assert {c["metadata"]["name"] for c in cluster.get("persistentvolumeclaims")} == {
        "kerf-metrics",
        "data-kerf-nats-0",
    }
