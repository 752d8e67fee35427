"""What the chart renders for values that are not the default ones."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from services.admission.quota import quota_gpu_milli
from services.operator import authority, schedulers
from services.operator.config import Config
from shared.model import names
from tests.support.manifests import removal
from tools.manifests import DEFAULTS, K8S, template

_POLICY = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
_CLASS = "resource.k8s.io/v1/DeviceClass"
_EXTERNAL = ("--set=nats.enabled=false", "--set=nats.external.url=tls://n:4222", "--set=nats.external.privateCa=true")
KEEP = "kerf.dev/keep"
VALUES = yaml.safe_load((K8S / "chart" / "values.yaml").read_text())


def _lists(values: dict[str, Any], above: str = "") -> list[str]:
    """The paths of all values that are lists."""
    found = [f"{above}{name}" for name, value in values.items() if isinstance(value, list)]
    inner = [_lists(value, f"{above}{name}.") for name, value in values.items() if isinstance(value, dict)]
    return sum(inner, found)


@pytest.mark.parametrize(("mounts", "propagation"), [("true", "Bidirectional"), ("false", "HostToContainer")])
def test_one_value_sets_the_agents_mount_and_its_propagation(mounts: str, propagation: str) -> None:
    shown = template(f"--set=agent.mountSlices={mounts}", "--show-only=templates/35-node-agent.yaml")
    assert f'{{name: KERF_NODE_AGENT_MOUNT_SLICES, value: "{mounts}"}}' in shown
    assert f"{{name: run, mountPath: /run/kerf, mountPropagation: {propagation}}}" in shown


@pytest.mark.parametrize(
    ("setting", "instead"),
    [
        ("node_agent.mount_slices=false", "set agent.mountSlices"),
        ("node_agent.run_dir=/var/run/kerf", "the pod's mounts need it as it is"),
        ("metrics.http_port=9090", "the pods' probes and ports need it as it is"),
        ("operator.nats_url=nats://n:4222", "set nats.external.url"),
    ],
)
def test_a_setting_that_other_objects_of_the_chart_need_is_refused_with_what_to_set(
    setting: str, instead: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        template(f"--set=settings.{setting}")
    name = setting.partition("=")[0]
    assert f"settings.{name} cannot be set: {instead}" in capfd.readouterr().err


def test_a_tag_beside_a_digest_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    """An upgrade keeps the digest of the installation, and with it the image, whatever tag it names."""
    digest = f"--set=image.digest=sha256:{'0' * 64}"
    agent = "--show-only=templates/35-node-agent.yaml"
    assert f"kerf@sha256:{'0' * 64}\n" in template(digest, agent)
    assert "kerf:0.3.0\n" in template(digest, "--set=image.digest=,image.tag=0.3.0", agent)
    with pytest.raises(subprocess.CalledProcessError):
        template(digest, "--set=image.tag=0.3.0", agent)
    assert "image.tag and image.digest are both set" in capfd.readouterr().err


def test_no_setting_names_a_variable_twice(tmp_path: Path) -> None:
    """A server-side apply refuses the whole pod for it, and a client-side one drops one of the two."""
    fixed = yaml.safe_load((K8S / "chart" / "files" / "fixed-settings.yaml").read_text())
    schema = json.loads((K8S / "chart" / "values.schema.json").read_text())["properties"]["settings"]["properties"]
    values = tmp_path / "values.yaml"
    free = {
        service: {name: "x" for name in known["properties"] if name not in fixed["every"] | fixed.get(service, {})}
        for service, known in schema.items()
    }
    others = {"page": {"signIn": "proxy"}, "prices": {"currency": "EUR"}, "agent": {"driverRoot": "/run/nvidia/driver"}}
    values.write_text(yaml.safe_dump({"settings": free, **others}))
    objects = [one for one in yaml.safe_load_all(template(f"--values={values}")) if one]
    pods = [one["spec"]["template"]["spec"] for one in objects if "template" in one.get("spec", {})]
    twice = [
        name
        for pod in pods
        for container in pod["containers"]
        for name, times in Counter(variable["name"] for variable in container.get("env", ())).items()
        if times > 1
    ]
    assert sum(map(len, free.values())) > 150
    assert twice == []


def test_the_kubelets_folder_is_mounted_where_the_agent_looks_for_it() -> None:
    shown = template("--set=agent.kubeletDir=/var/lib/k0s/kubelet", "--show-only=templates/35-node-agent.yaml")
    assert "{name: KERF_NODE_AGENT_KUBELET_DIR, value: /var/lib/k0s/kubelet}" in shown
    assert "{name: plugins-registry, mountPath: /var/lib/k0s/kubelet/plugins_registry}" in shown
    assert "/var/lib/kubelet" not in shown


def test_probes_of_another_nats_image_run_no_program_in_it() -> None:
    (servers,) = (
        one
        for one in yaml.safe_load_all(template("--set=nats.image=nats:2.12", "--show-only=templates/30-nats.yaml"))
        if one["kind"] == "StatefulSet"
    )
    (container,) = servers["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["tcpSocket"] == {"port": "client"}
        assert "exec" not in container[probe]


@pytest.mark.parametrize(
    ("enrolment", "labels"),
    [
        ((), [names.LABEL_ENROLLED]),
        (("--set=settings.operator.enrolment=true",), [names.LABEL_ENROLLED]),
        (("--set=settings.operator.enrolment=false",), [names.LABEL_ENROLLED, names.LABEL_MANAGED]),
        (("--set-string=settings.operator.enrolment=0",), [names.LABEL_ENROLLED, names.LABEL_MANAGED]),
    ],
)
def test_the_owners_label_brings_an_agent_only_where_no_operator_enrols(
    enrolment: tuple[str, ...], labels: list[str]
) -> None:
    """The agent offers all GPUs of its node, and the operator waits until those of other systems are free."""
    agents = yaml.safe_load(template(*enrolment, "--show-only=templates/35-node-agent.yaml"))
    affinity = agents["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchExpressions"] for term in terms] == [
        [{"key": label, "operator": "In", "values": ["true"]}] for label in labels
    ]


def test_listeners_are_given_to_the_operator() -> None:
    shown = template(
        "--set=nats.listeners.namespaces={team-a,team-b}",
        "--set=nats.listeners.accounts={monitoring/usage}",
        "--show-only=templates/37-operator.yaml",
    )
    assert """KERF_OPERATOR_LISTENING_NAMESPACES, value: '["team-a","team-b"]'}""" in shown
    assert """KERF_OPERATOR_LISTENING_ACCOUNTS, value: '["monitoring/usage"]'}""" in shown


@pytest.mark.parametrize("other", ["nats.agentUsers=shared", "nats.enabled=false"])
def test_listeners_without_the_servers_that_ask_the_operator_are_refused(
    other: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        template("--set=nats.listeners.namespaces={team-a}", f"--set={other}", "--set=nats.external.url=tls://n:4222")
    assert "nats.listeners need NATS servers of this installation" in capfd.readouterr().err


@pytest.mark.parametrize("path", _lists(VALUES))
def test_a_list_without_an_entry_is_an_empty_one(path: str) -> None:
    """`bindingPolicy: {schedulers: }` in a file of values: helm takes the default away, and null is no list."""
    for made in _all(f"--set={path}=null", "--set=page.signIn=proxy"):
        pod = ((made.get("spec") or {}).get("template") or {}).get("spec") or {"containers": []}
        for container in pod["containers"]:
            assert {v["name"] for v in container.get("env", ()) if v.get("value") == "null"} == set()


@pytest.mark.parametrize("users", ["node", "shared"])
def test_the_operator_can_reload_the_servers_whichever_users_agents_have(users: str) -> None:
    """Else a renewed certificate never reaches them. The operator compares the annotation with the servers' tag."""
    made = {
        (d["kind"], d["metadata"]["name"]): d
        for d in _all(f"--set=nats.agentUsers={users}")
        if d["kind"] in ("ConfigMap", "StatefulSet")
    }
    conf = made["ConfigMap", "kerf-nats"]["data"]["kerf.conf"]
    assert "user: system, password: $KERF_NATS_SYSTEM " in conf
    assert "user: operator_service\n" in conf
    assert ("auth_callout" in conf) == (users == "node")
    servers = made["StatefulSet", "kerf-nats"]
    digest = servers["metadata"]["annotations"]["kerf.dev/nats-users"]
    assert f'server_tags: ["kerf.dev/nats-users:{digest}"]' in conf
    variables = {v["name"] for v in servers["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert {*re.findall(r"\$(KERF_NATS_\w+)", conf)} <= variables


@pytest.mark.parametrize("way", ["policy", "webhook"])
def test_one_value_says_what_completes_pods_where_helm_asks_no_cluster(way: str) -> None:
    shown = template(f"--set=admission.canonical={way}")
    assert ("kind: MutatingAdmissionPolicy\n" in shown) == (way == "policy")
    assert ("name: canonical.kerf.dev\n" in shown) == (way == "webhook")


@pytest.mark.parametrize(
    ("known", "newest"), [((), False), (("--api-versions=" + _POLICY, "--api-versions=" + _CLASS), True)]
)
def test_without_a_cluster_helm_takes_what_works_on_every_version(known: tuple[str, ...], newest: bool) -> None:
    """`helm template` knows groups and versions, and no kinds, unless it is told (helm/helm,
    pkg/chartutil/capabilities.go, allKnownVersions)."""
    shown = template(*known)
    assert ("kind: MutatingAdmissionPolicy\n" in shown) == ("kind: DeviceClass\n" in shown) == newest
    assert ("name: canonical.kerf.dev\n" in shown) != newest


def test_policy_and_webhook_have_the_same_match_conditions() -> None:
    """Else a pod would be completed on one version of Kubernetes and not on another."""
    made = {policy["metadata"]["name"]: policy for policy in _documents("policy", "MutatingAdmissionPolicy")}
    policy, amounts = made["kerf-canonical"], made["kerf-amounts"]
    assert amounts["spec"]["matchConditions"] == policy["spec"]["matchConditions"]
    namespaces = amounts["spec"]["matchConstraints"]["namespaceSelector"]
    assert namespaces == {"matchLabels": {names.ANNOTATION_PROFILE: "debug"}}
    (config,) = _documents("webhook", "MutatingWebhookConfiguration")
    (webhook,) = [hook for hook in config["webhooks"] if hook["name"] == "canonical.kerf.dev"]
    assert webhook["matchConditions"] == policy["spec"]["matchConditions"]
    assert "namespaceSelector" not in webhook
    assert webhook["failurePolicy"] == policy["spec"]["failurePolicy"] == "Fail"


@pytest.mark.parametrize("way", ["policy", "webhook"])
def test_the_profiles_entry_is_the_last_one_of_the_webhook(way: str) -> None:
    """Webhooks of one configuration are called in its order; this one reads what the others have translated."""
    (config,) = _documents(way, "MutatingWebhookConfiguration")
    assert [hook["name"] for hook in config["webhooks"]].index("debug.profiles.kerf.dev") == len(config["webhooks"]) - 1


def test_one_value_sets_the_share_of_the_profile_debug_in_policy_and_webhook() -> None:
    shown = template("--set=admission.canonical=policy", "--set=profiles.debugMemoryPercent=40")
    assert '{name: KERF_ADMISSION_DEBUG_MEMORY_PERCENT, value: "40"}' in shown
    assert "string(40 * quantity(" in shown
    assert "string(25 * quantity(" not in shown


def test_one_value_sets_what_a_slice_counts_at_least_in_policies_and_webhook() -> None:
    shown = template("--set=admission.canonical=policy", "--set=quota.leastMilli=143")
    assert '{name: KERF_ADMISSION_QUOTA_LEAST_MILLI, value: "143"}' in shown
    assert shown.count(", 143].max()") == shown.count("a[0] * 1000") == 5


class _List(list[int]):
    """A list of CEL, as the expression's text has it."""

    def max(self) -> int:
        return max(self)

    def min(self) -> int:
        return min(self)


def _counted(formula: str, gpus: int, memory: int, percent: int, gpu_bytes: int) -> int:
    """The value of a formula of CEL, with its divisions of integers, for a part: n GPUs, a[1] bytes, a[2] percent."""
    text = formula.replace("a[1]", "memory").replace("a[2]", "percent").replace("variables.gpuMemory", "gpu_bytes")
    text = text.replace("[", "_List([").replace("]", "])").replace(" / ", " // ")
    given = {"n": gpus, "memory": memory, "percent": percent, "gpu_bytes": gpu_bytes, "_List": _List}
    value = eval(text, given)
    assert isinstance(value, int)
    return value


def _accepted_amounts(least: int) -> list[str]:
    """What the rule [quota-amount] compares the amount of a part with, as CEL."""
    made = _all("--set=admission.canonical=webhook", f"--set=quota.leastMilli={least}")
    (request,) = [
        d for d in made if d["kind"] == "ValidatingAdmissionPolicy" and d["metadata"]["name"] == "kerf-request"
    ]
    (rule,) = [one for one in request["spec"]["validations"] if "[quota-amount]" in one.get("message", "")]
    return re.findall(r"\.map\(n,\s+(\[.*\]\.min\(\))\)", rule["expression"])


def test_what_either_version_of_the_webhook_writes_is_accepted() -> None:
    """The version before rounded memory once over all GPUs; its pods answer beside the new policies for a while."""
    formulas, gpu_bytes = _accepted_amounts(1), 80 << 30
    for gpus, each_mib, each_percent in itertools.product((1, 3, 8), (0, 1, 820, 10_000, 200_000), (0, 1, 30)):
        memory, percent = gpus * each_mib << 20, gpus * each_percent
        if memory or percent:
            asks: dict[str, str | int] = {
                "kerf.dev/gpu": gpus,
                "kerf.dev/gpu-memory": memory,
                "kerf.dev/gpu-compute": percent,
            }
            before = min(gpus * 1000, max(-(-memory * 1000 // gpu_bytes), percent * 10))
            accepted = [_counted(one, gpus, memory, percent, gpu_bytes) for one in formulas]
            assert accepted == [quota_gpu_milli(asks, gpu_bytes, 1), before], asks


def test_a_least_amount_that_the_version_before_did_not_have_is_accepted_alone() -> None:
    assert len(_accepted_amounts(143)) == 1


@pytest.mark.parametrize(("given", "named"), [("", None), ("gpu-agents", "gpu-agents")])
def test_the_agents_priority_class_is_a_value(given: str, named: str | None) -> None:
    shown = template(f"--set=agent.priorityClassName={given}", "--show-only=templates/35-node-agent.yaml")
    assert yaml.safe_load(shown)["spec"]["template"]["spec"].get("priorityClassName") == named
    default = yaml.safe_load(template("--show-only=templates/35-node-agent.yaml"))
    assert default["spec"]["template"]["spec"]["priorityClassName"] == "system-node-critical"


def test_a_quota_for_no_priority_class_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    """The API server would take no quota whose list of classes is empty."""
    none = ("--set=agent.priorityClassName=", "--set=controlPlane.priorityClassName=")
    with pytest.raises(subprocess.CalledProcessError):
        template("--set=priorityQuota.create=true", *none)
    assert "priorityQuota.create: true makes a quota for the PriorityClasses" in capfd.readouterr().err


def test_a_quota_admits_all_priority_classes_and_the_job_that_removes_kerf() -> None:
    """The quota of the installation is gone when the job begins."""
    assert "ResourceQuota" not in {d["kind"] for d in _all()}
    made = _all("--set=priorityQuota.create=true", "--set=agent.priorityClassName=agents")
    quotas = {d["metadata"]["name"]: d for d in made if d["kind"] == "ResourceQuota"}
    of = {d["spec"]["template"]["spec"].get("priorityClassName") for d in made if "template" in (d.get("spec") or {})}
    assert of == {"agents", "system-cluster-critical"}
    for quota in quotas.values():
        (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
        assert (scope["scopeName"], scope["operator"], {*scope["values"]}) == ("PriorityClass", "In", of)
    (job,) = [d for d in made if d["kind"] == "Job"]
    hooks = {name: quota["metadata"].get("annotations", {}).get("helm.sh/hook") for name, quota in quotas.items()}
    assert hooks == {"kerf-priority": None, "kerf-uninstall": job["metadata"]["annotations"]["helm.sh/hook"]}
    assert quotas["kerf-uninstall"]["metadata"]["annotations"]["helm.sh/hook-weight"] == "-5", "before the job"


def test_certificates_of_cert_manager_have_the_names_of_the_operators_own() -> None:
    made = _all("--set=certificates.from=cert-manager", "--set=certificates.issuer.name=i")
    found = {
        d["metadata"]["name"]: {*d["spec"]["dnsNames"], *d["spec"].get("ipAddresses", ())}
        for d in made
        if d["kind"] == "Certificate"
    }
    own = authority.server_names(Config(nats_url="tls://kerf-nats.kerf-system.svc:4222"))
    assert {*own} == {*found}
    assert {*own["kerf-nats-tls"]} == found["kerf-nats-tls"]
    assert "127.0.0.1" in found["kerf-nats-tls"]


def test_a_nats_of_others_gets_no_certificate_of_cert_manager() -> None:
    made = _all("--set=certificates.from=cert-manager", "--set=certificates.issuer.name=i", *_EXTERNAL)
    assert [d["metadata"]["name"] for d in made if d["kind"] == "Certificate"] == ["kerf-admission"]


def test_a_pod_gets_the_credentials_of_its_own_user_alone() -> None:
    """The Secret has those of all users, and agents run on every GPU node."""
    users = {}
    for made in _all(*_EXTERNAL, "--set=nats.external.credentialsSecret=creds", "--no-hooks"):
        if made["kind"] not in ("Deployment", "DaemonSet", "StatefulSet"):
            continue
        pod = made["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        named = {v["name"]: v.get("value") for v in container["env"]}.get("KERF_NATS_CREDENTIALS")
        files = [
            volume["secret"]
            for volume in pod.get("volumes", ())
            if volume.get("secret", {}).get("secretName") == "creds"
        ]
        if named is None:
            assert files == []
            continue
        (mount,) = [m for m in container["volumeMounts"] if m["name"] == "nats-credentials"]
        folder, _, name = named.rpartition("/")
        assert mount["mountPath"] == folder
        assert files == [{"secretName": "creds", "items": [{"key": name, "path": name}]}]
        users[made["metadata"]["name"]] = name
    assert users == {
        f"kerf-{user.replace('_', '-')}": f"{user}.creds"
        for user in ("placement", "watcher", "node_agent", "preemptor", "metrics")
    }


def test_what_streams_may_take_changes_without_the_volumes_template() -> None:
    """Kubernetes refuses a StatefulSet with other volumeClaimTemplates."""

    def parts(*options: str) -> tuple[str, Any, str]:
        made = _all(*options)
        (conf,) = [
            d["data"]["nats.conf"] for d in made if (d["kind"], d["metadata"]["name"]) == ("ConfigMap", "kerf-nats")
        ]
        (servers,) = [d["spec"] for d in made if d["kind"] == "StatefulSet" and d["metadata"]["name"] == "kerf-nats"]
        restart = servers["template"]["metadata"]["annotations"]["kerf.dev/nats-restart"]
        return re.findall("max_file_store: (.*)", conf)[0], servers["volumeClaimTemplates"], restart

    before, after = parts(), parts("--set=nats.storage.maxFileStore=20Gi")
    assert (before[0], after[0]) == ("10Gi", "20Gi")
    assert before[1] == after[1]
    assert before[2] != after[2], "the operator restarts the servers"


def test_the_database_of_metrics_has_a_folder_for_what_it_sorts() -> None:
    """Without one SQLite looks below /var/tmp, /tmp and the working folder, all read-only there, and questions about
    some 20,000 slices fail (SQLITE_IOERR_GETTEMPPATH: `disk I/O error`)."""
    (metrics,) = [d for d in _all("--show-only=templates/34-metrics.yaml") if d["kind"] == "Deployment"]
    (container,) = metrics["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    folder = {v["name"]: v.get("value") for v in container["env"]}["SQLITE_TMPDIR"]
    assert any(PurePosixPath(folder).is_relative_to(path) for path in writable)


def test_what_is_deleted_without_helm_is_all_but_the_namespace_and_recorded_usage() -> None:
    """The job that removes the rest needs the namespace, and with that would go the volumes."""
    delete, apply, wait, logs, remove = removal()
    assert delete == f"kubectl delete --filename k8s/ --selector '!{KEEP}'"
    there = [d for file in K8S.glob("*.yaml") for d in yaml.safe_load_all(file.read_text()) if d]
    kept = {(d["kind"], d["metadata"]["name"]) for d in there if KEEP in d["metadata"].get("labels", {})}
    assert kept == {("Namespace", "kerf-system"), ("PersistentVolumeClaim", "kerf-metrics")}
    assert (apply, remove) == ("kubectl apply --filename k8s/uninstall/", "kubectl delete --filename k8s/uninstall/")
    (job,) = [d for d in _uninstall() if d["kind"] == "Job"]
    assert wait.endswith(f" job/{job['metadata']['name']}")
    assert logs.endswith(f" job/{job['metadata']['name']}")


def test_the_page_says_which_values_the_plain_manifests_do_not_have_from_the_chart() -> None:
    page = (K8S.parent / "docs" / "install.md").read_text()
    part = page[page.index("\n## Without Helm\n") : page.index("\n## Values\n")]
    assert [one for one in DEFAULTS if f"`{one.removeprefix('--set=')}`" not in part] == []
    older = _all("--no-hooks", "--set=namespace.create=true", "--kube-version=1.32.0")
    assert {"MutatingAdmissionPolicy", "DeviceClass"}.isdisjoint(d["kind"] for d in older)


def test_the_job_that_removes_kerf_without_helm_is_that_of_the_chart() -> None:
    hooks = [d for d in _all() if "helm.sh/hook" in d["metadata"].get("annotations", {})]
    for document in hooks:
        del document["metadata"]["annotations"]
    plain = _uninstall()
    assert plain == hooks
    account = {("ServiceAccount", "kerf-uninstall"), ("Role", "kerf-uninstall"), ("ClusterRole", "kerf-uninstall")}
    assert account < {(d["kind"], d["metadata"]["name"]) for d in plain}
    assert "Namespace" not in {d["kind"] for d in plain}


def test_the_job_that_removes_kerf_has_the_operators_settings() -> None:
    """Without strict_x509 some API servers cannot be connected to, and nothing is removed."""
    made = _all("--set=settings.operator.strict_x509=false", "--set=settings.operator.lease_s=7")
    operator, job = (
        d["spec"]["template"]["spec"]["containers"][0]["env"]
        for kind, name in (("Deployment", "kerf-operator"), ("Job", "kerf-uninstall"))
        for d in made
        if (d["kind"], d["metadata"]["name"]) == (kind, name)
    )
    assert [v for v in job if v["name"].startswith("KERF_OPERATOR_")] == [
        v for v in operator if v["name"].startswith("KERF_OPERATOR_")
    ]
    assert {"name": "KERF_OPERATOR_STRICT_X509", "value": "false"} in job


def test_the_namespace_outlives_the_release() -> None:
    """Also where the chart has made it: the volumes are in it, and the job that runs after all has been deleted."""
    (namespace,) = _all("--set=namespace.create=true", "--show-only=templates/00-namespace.yaml")
    assert namespace["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_replicas_go_to_different_zones_and_nodes_where_there_are_some() -> None:
    """Zones are no topologySpreadConstraint: where nodes have no zone, kube-scheduler would not spread over nodes."""
    spread = []
    for made in _all("--set=nats.replicas=3", "--no-hooks"):
        if made["kind"] not in ("Deployment", "StatefulSet"):
            continue
        pod, labels = made["spec"]["template"]["spec"], made["spec"]["template"]["metadata"]["labels"]
        (zones,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        (nodes,) = pod["topologySpreadConstraints"]
        assert zones["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"
        assert (nodes["topologyKey"], nodes["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
        for selector in (zones["podAffinityTerm"]["labelSelector"], nodes["labelSelector"]):
            assert selector == made["spec"]["selector"]
            assert selector["matchLabels"].items() <= labels.items()
        spread.append(made["metadata"]["name"])
    assert len(spread) == 7
    assert "kerf-nats" in spread


def test_no_nats_server_is_restarted_for_the_zone_that_the_next_one_prefers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator replaces servers where the digest is another; their volumes would keep them in their zones."""
    shutil.copytree(K8S / "chart", tmp_path / "chart")
    helpers = tmp_path / "chart" / "templates" / "_helpers.tpl"

    def digest() -> str:
        (servers,) = [d for d in _all("--show-only=templates/30-nats.yaml") if d["kind"] == "StatefulSet"]
        restart: str = servers["spec"]["template"]["metadata"]["annotations"]["kerf.dev/nats-restart"]
        return restart

    before = digest()
    monkeypatch.setattr("tools.manifests.K8S", tmp_path)
    text = helpers.read_text()
    for old, new, same in (("kubernetes.io/zone", "example.com/rack", True), ("/hostname", "/host", False)):
        assert old in text
        helpers.write_text(text.replace(old, new))
        assert (digest() == before) == same


LISTED = " a\nsystem:kube-scheduler  b\tc\r\nd e\n"


def test_the_policy_separates_accounts_as_the_operator_does() -> None:
    """The expression's operations, one by one, as CEL has them (cel-go, ext/strings.go)."""
    (policy,) = _documents("policy", "ValidatingAdmissionPolicy", "kerf-binding")
    (validation,) = policy["spec"]["validations"]
    head, _, operations = validation["expression"].partition(".orValue('')")
    assert head == "request.userInfo.username in params.data[?'accounts']"
    *replaced, separator = re.findall(r"\.(\w+)\('([^']*)'(?:, '([^']*)')?\)", operations)
    text = LISTED
    for operation, old, new in replaced:
        assert operation == "replace"
        text = text.replace(old.encode().decode("unicode_escape"), new)
    assert separator[0] == "split"
    assert [name for name in text.split(separator[1]) if name] == schedulers.accounts(LISTED)
    assert schedulers.accounts(LISTED) == ["a", "system:kube-scheduler", "b", "c", "d", "e"]


def _uninstall() -> list[Any]:
    return [d for file in (K8S / "uninstall").iterdir() for d in yaml.safe_load_all(file.read_text()) if d]


def _all(*options: str) -> list[Any]:
    return [document for document in yaml.safe_load_all(template(*options)) if document]


def _documents(way: str, kind: str, name: str = "") -> list[Any]:
    made = _all(f"--set=admission.canonical={way}")
    return [d for d in made if d["kind"] == kind and name in ("", d["metadata"]["name"])]
