"""Objects of other APIs that state how many pods belong together, read into one form."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.kube.decoder import Decoder
from shared.kube.gangs.decoder import decoder_of
from shared.kube.gangs.pod_group import CONDITION, condition_type
from shared.kube.resources import BY_KIND, GANG_SOURCES, REFLECTED
from shared.model.objects import Gang, GroupCondition


def read(plural: str, group: str, spec: dict[str, Any], *, notes: dict[str, str] | None = None) -> Gang:
    meta = {"name": "train", "namespace": "team", "uid": "u", "resourceVersion": "7", "labels": {"x": "y"}}
    document = {
        "metadata": meta | {"annotations": notes or {}},
        "spec": spec,
        "status": {"phase": 5},
    }
    return decoder_of(plural, group).decode(msgspec.json.encode(document))


def test_its_name_is_as_kubectl_writes_it() -> None:
    found = read("jobsets", "jobset.x-k8s.io", {})
    assert (found.metadata.name, found.metadata.namespace, found.metadata.uid, found.metadata.resource_version) == (
        "jobset.jobset.x-k8s.io/train",
        "team",
        "u",
        "7",
    )


@pytest.mark.parametrize("group", ["scheduling.x-k8s.io", "scheduling.volcano.sh", "scheduling.run.ai"])
def test_a_pod_group_has_a_least_number_of_members(group: str) -> None:
    found = read(
        "podgroups",
        group,
        {
            "minMember": 4,
            "scheduleTimeoutSeconds": 20,
            "topologyConstraint": {"topology": "t", "requiredTopologyLevel": "rack", "preferredTopologyLevel": "block"},
        },
    )
    assert (found.minimum, found.timeout_s, found.required, found.preferred) == (4, 20, "rack", "block")


def test_a_pod_group_of_kubernetes_is_a_gang_or_is_not() -> None:
    gang = read(
        "podgroups",
        "scheduling.k8s.io",
        {
            "schedulingPolicy": {"gang": {"minCount": 3}},
            "schedulingConstraints": {"topology": [{"key": "example.com/rack"}]},
        },
    )
    assert (gang.minimum, gang.required) == (3, "example.com/rack")
    assert read("podgroups", "scheduling.k8s.io", {"schedulingPolicy": {"basic": {}}}).minimum == 0


@pytest.mark.parametrize("kind", ["PodGroupScheduled", "PodGroupInitiallyScheduled"])
def test_a_pod_groups_condition_is_read_by_the_name_of_its_version(kind: str) -> None:
    """kubernetes/api scheduling/v1alpha2/types.go (1.36) and scheduling/v1beta1/types.go (1.37)."""
    conditions = [
        {"type": "DisruptionTarget", "status": "True"},
        {"type": kind, "status": "False", "reason": "Unschedulable", "message": "no room", "observedGeneration": 1},
    ]
    document = {
        "metadata": {"name": "train", "namespace": "team", "uid": "u", "resourceVersion": "7", "generation": 4},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}, "parentCompositePodGroupName": "all"},
        "status": {"conditions": conditions},
    }
    found = decoder_of("podgroups", "scheduling.k8s.io").decode(msgspec.json.encode(document))
    assert found.scheduled == GroupCondition(status="False", reason="Unschedulable", message="no room")
    assert (found.generation, found.parent) == (4, "all")


@pytest.mark.parametrize(
    ("version", "name"),
    [("v1alpha2", "PodGroupScheduled"), ("v1alpha3", CONDITION), ("v1beta1", CONDITION), ("v1", CONDITION)],
)
def test_the_condition_is_written_as_its_version_calls_it(version: str, name: str) -> None:
    assert condition_type(version) == name


def test_groups_of_a_workload_are_parts() -> None:
    found = read(
        "workloads",
        "scheduling.k8s.io",
        {
            "podGroups": [
                {"name": "driver", "policy": {"basic": {}}},
                {"name": "workers", "policy": {"gang": {"minCount": 5}}},
            ]
        },
    )
    assert found.parts == {"driver": 0, "workers": 5}


def test_a_jobset_is_as_many_pods_as_its_jobs_run_at_once() -> None:
    jobs = [
        {"name": "leader", "template": {"spec": {}}},
        {"name": "workers", "replicas": 2, "template": {"spec": {"parallelism": 4, "completions": 3}}},
    ]
    found = read("jobsets", "jobset.x-k8s.io", {"replicatedJobs": jobs})
    assert (found.minimum, found.parts) == (7, {})


@pytest.mark.parametrize("order", [{"startupPolicy": {"startupPolicyOrder": "InOrder"}}, "dependsOn"])
def test_jobs_that_start_one_after_the_other_are_gangs_of_their_own(order: Any) -> None:
    jobs: list[dict[str, Any]] = [
        {"name": "leader", "template": {"spec": {}}},
        {"name": "workers", "replicas": 2, "template": {"spec": {"parallelism": 4}}},
    ]
    if order == "dependsOn":
        jobs[1]["dependsOn"] = [{"name": "leader", "status": "Ready"}]
    found = read("jobsets", "jobset.x-k8s.io", {"replicatedJobs": jobs, **(order if isinstance(order, dict) else {})})
    assert (found.minimum, found.parts) == (0, {"leader": 1, "workers": 8})


EXCLUSIVE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "pool"}
LABELLED = EXCLUSIVE | {"alpha.jobset.sigs.k8s.io/node-selector": "true"}


@pytest.mark.parametrize(("notes", "of_job", "order", "minimum", "parts"), [
    (EXCLUSIVE, {}, "", 3, {"driver/followers": 0, "workers/followers": 3}),
    ({}, EXCLUSIVE, "", 3, {"workers/followers": 3}),
    (LABELLED, {}, "", 9, {}),
    ({}, EXCLUSIVE, "InOrder", 0, {"driver": 1, "workers": 2, "workers/followers": 3}),
])  # fmt: skip
def test_in_topologies_of_their_own_the_first_pods_of_a_jobsets_jobs_are_the_gang(
    notes: dict[str, str], of_job: dict[str, str], order: str, minimum: int, parts: dict[str, int]
) -> None:
    """The API server accepts the others when the first one of their job has a node."""
    meta = {"creationTimestamp": None, "annotations": of_job}
    jobs = [
        {"name": "driver", "template": {"metadata": {"creationTimestamp": None, "annotations": None}, "spec": {}}},
        {"name": "workers", "replicas": 2, "template": {"metadata": meta, "spec": {"parallelism": 4}}},
    ]
    spec = {"replicatedJobs": jobs, "startupPolicy": {"startupPolicyOrder": order}}
    found = read("jobsets", "jobset.x-k8s.io", spec, notes=notes)
    assert (found.minimum, found.parts) == (minimum, parts)


@pytest.mark.parametrize(("kind", "field"), [
    ("pytorchjobs", "pytorchReplicaSpecs"), ("tfjobs", "tfReplicaSpecs"), ("mpijobs", "mpiReplicaSpecs"),
    ("xgboostjobs", "xgbReplicaSpecs"), ("paddlejobs", "paddleReplicaSpecs"), ("jaxjobs", "jaxReplicaSpecs"),
])  # fmt: skip
def test_a_job_of_kubeflow_has_all_its_replicas_or_the_stated_minimum(kind: str, field: str) -> None:
    roles = {"Master": {"replicas": 1}, "Worker": {"replicas": 7, "template": {}}}
    assert read(kind, "kubeflow.org", {field: roles}).minimum == 8
    policy = {"schedulingPolicy": {"minAvailable": 5, "scheduleTimeoutSeconds": 9}}
    found = read(kind, "kubeflow.org", {field: roles, "runPolicy": policy})
    assert (found.minimum, found.timeout_s) == (5, 9)
    assert (
        read(kind, "kubeflow.org", {field: roles, "elasticPolicy": {"minReplicas": 2, "maxReplicas": 7}}).minimum == 3
    )


def test_the_gang_does_not_wait_for_a_launcher_that_is_created_when_the_workers_run() -> None:
    roles = {"Launcher": {"replicas": 1}, "Worker": {"replicas": 4}}
    assert read("mpijobs", "kubeflow.org", {"mpiReplicaSpecs": roles}).minimum == 5
    assert (
        read(
            "mpijobs", "kubeflow.org", {"mpiReplicaSpecs": roles, "launcherCreationPolicy": "WaitForWorkersReady"}
        ).minimum
        == 4
    )


def test_a_job_is_a_gang_of_its_parallel_pods() -> None:
    assert read("jobs", "batch", {}).minimum == 1
    assert read("jobs", "batch", {"parallelism": 8, "completions": 6}).minimum == 6
    assert read("jobs", "batch", {"parallelism": 8}).minimum == 8


def test_what_has_another_form_is_unreadable_and_not_a_guess() -> None:
    with pytest.raises(msgspec.ValidationError):
        read("podgroups", "scheduling.x-k8s.io", {"minMember": "four"})


def test_every_source_is_reflected_and_all_but_jobs_may_be_absent() -> None:
    assert [r.plural for r in GANG_SOURCES if not r.optional] == ["jobs"]
    assert set(GANG_SOURCES) <= set(REFLECTED)
    assert "Gang" not in BY_KIND
    assert len({r.title for r in REFLECTED}) == len(REFLECTED)
    for source in GANG_SOURCES:
        line = msgspec.json.encode(
            {
                "type": "ADDED",
                "object": {"kind": "Whatever", "metadata": {"name": "a", "namespace": "b", "uid": "u"}, "spec": {}},
            }
        )
        kind, found = Decoder(source).event(line)
        assert (kind, found.metadata.name) == ("ADDED", f"{source.plural.removesuffix('s')}.{source.group}/a")


def leaves(gang: Gang) -> dict[str, int]:
    return {leaf.name: leaf.minimum for subgroup in gang.subgroups for leaf in subgroup.leaves()}


def test_kais_subgroups_are_a_tree_written_as_a_list() -> None:
    topology = {"topology": "t", "requiredTopologyLevel": "spine"}
    found = read("podgroups", "scheduling.run.ai", {
        "minSubGroup": 1,
        "subGroups": [
            {"name": "replica", "minSubGroup": 1, "topologyConstraint": topology},
            {"name": "decode", "parent": "replica", "minMember": 4},
            {"name": "prefill", "parent": "replica", "minMember": 2},
            {"name": "router", "minMember": 1},
        ],
    })  # fmt: skip
    assert (found.minimum, found.min_subgroups) == (0, 1)
    replica, router = found.subgroups
    assert (replica.name, replica.min_subgroups, replica.required, router.minimum) == ("replica", 1, "spine", 1)
    assert leaves(found) == {"decode": 4, "prefill": 2, "router": 1}


@pytest.mark.parametrize(("subgroups", "said"), [
    ([{"name": f"s{i}", "parent": f"s{i - 1}" if i else None, "minMember": 1} for i in range(2000)], "at most 1000"),
    ([{"name": f"s{i}", "parent": f"s{i - 1}" if i else None, "minMember": 1} for i in range(900)], "more than 8 deep"),
    ([{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}], "2 are below an unknown parent"),
    ([{"name": "a", "parent": "nobody"}], "1 are below an unknown parent"),
    ([{"name": "a"}, {"name": "a"}], "a name of its own"),
])  # fmt: skip
def test_kais_subgroups_that_are_no_tree_are_unreadable(subgroups: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=said):
        read("podgroups", "scheduling.run.ai", {"subGroups": subgroups})


def test_volcanos_minimum_of_each_task_counts_beside_that_of_all() -> None:
    found = read("podgroups", "scheduling.volcano.sh", {"minMember": 5, "minTaskMember": {"ps": 1, "worker": 2}})
    assert (found.minimum, leaves(found)) == (5, {"ps": 1, "worker": 2})


def test_volcanos_minima_of_tasks_do_not_count_where_all_need_fewer_than_their_sum() -> None:
    """Its controller writes all replicas for a task whose job names no minimum for it."""
    found = read("podgroups", "scheduling.volcano.sh", {"minMember": 1, "minTaskMember": {"ps": 1, "worker": 4}})
    assert (found.minimum, leaves(found)) == (1, {})


def test_a_ray_cluster_needs_its_head_and_the_least_of_each_group_of_workers() -> None:
    found = read("rayclusters", "ray.io", {
        "enableInTreeAutoscaling": True,
        "headGroupSpec": {"rayStartParams": {}},
        "workerGroupSpecs": [
            {"groupName": "small", "replicas": 3, "minReplicas": 1, "maxReplicas": 5},
            {"groupName": "none", "replicas": 2, "minReplicas": 0, "numOfHosts": 4},
            {"groupName": "idle", "replicas": 2, "suspend": True},
        ],
    })  # fmt: skip
    assert leaves(found) == {"headgroup": 1, "small": 1, "none": 0, "idle": 0}


@pytest.mark.parametrize("scaled", [{}, {"enableInTreeAutoscaling": False}, {"enableInTreeAutoscaling": None}])
def test_a_group_of_fixed_size_without_a_minimum_needs_all_its_replicas(scaled: dict[str, Any]) -> None:
    group = {"groupName": "fixed", "replicas": 2, "minReplicas": 0, "numOfHosts": 4}
    found = read("rayclusters", "ray.io", {"workerGroupSpecs": [group], **scaled})
    assert leaves(found) == {"headgroup": 1, "fixed": 8}


def test_groves_groups_of_pod_groups_share_a_domain() -> None:
    found = read("podgangs", "scheduler.grove.io", {
        "topologyConstraint": {"packConstraint": {"required": "zone"}},
        "podgroups": [
            {"name": "sga-prefill", "podReferences": [], "minReplicas": 2},
            {"name": "sga-decode", "podReferences": [], "minReplicas": 3,
             "topologyConstraint": {"packConstraint": {"preferred": "host"}}},
            {"name": "router", "podReferences": [], "minReplicas": 1},
        ],
        "topologyConstraintGroupConfigs": [{
            "name": "sga", "podGroupNames": ["sga-prefill", "sga-decode"],
            "topologyConstraint": {"packConstraint": {"required": "rack"}},
        }],
    })  # fmt: skip
    assert (found.required, leaves(found)) == ("zone", {"sga-prefill": 2, "sga-decode": 3, "router": 1})
    assert [(one.name, one.required) for one in found.subgroups] == [("group sga", "rack"), ("router", "")]
    assert found.subgroups[0].subgroups[1].preferred == "host"


@pytest.mark.parametrize(("policy", "notes", "subgroups", "parts"), [
    ("", {}, {"leader": 1, "workers": 3}, {}),
    ("LeaderCreated", {}, {"leader": 1, "workers": 3}, {}),
    ("LeaderReady", {}, {}, {"leader": 1, "workers": 3}),
    ("", {"leaderworkerset.sigs.k8s.io/exclusive-topology": "pool"}, {}, {"leader": 1, "workers": 3}),
])  # fmt: skip
def test_workers_that_are_created_after_their_leader_has_a_node_are_a_gang_of_their_own(
    policy: str, notes: dict[str, str], subgroups: dict[str, int], parts: dict[str, int]
) -> None:
    spec = {"leaderWorkerTemplate": {"size": 4}} | ({"startupPolicy": policy} if policy else {})
    found = read("leaderworkersets", "leaderworkerset.x-k8s.io", spec, notes=notes)
    assert (leaves(found), found.parts) == (subgroups, parts)
