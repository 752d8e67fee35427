"""To which gang a pod belongs, by Kerf's annotations and by those of others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.model.gang import MOST_MEMBERS, GangRef, read_gang
from shared.model.kube_object import OwnerReference
from shared.model.objects import SchedulingGroup, WorkloadReference
from shared.model.request import RequestError
from shared.model.subgroup import Subgroup
from tests.support import build


def read(
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    owner: OwnerReference | None = None,
    **spec: Any,
) -> GangRef | None:
    pod = build.pod(annotations=annotations, labels=labels, **spec)
    return read_gang(
        msgspec.structs.replace(
            pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(owner,) if owner else ())
        )
    )


def kerf(**notes: str) -> dict[str, str]:
    return {f"kerf.dev/{key.replace('_', '-')}": value for key, value in notes.items()}


def test_a_pod_without_gang_annotations_is_placed_by_itself() -> None:
    assert read() is None
    assert (
        read(
            labels={"job-name": "train", "batch.kubernetes.io/job-name": "train"},
            owner=OwnerReference(kind="Job", name="train", controller=True),
        )
        is None
    )


def test_a_gang_is_declared_by_name_and_size() -> None:
    assert read(kerf(gang="train", gang_size="8")) == GangRef(name="train", minimum=8)
    asked = read(
        kerf(
            gang="train",
            gang_size="8",
            gang_min="6",
            gang_timeout="30",
            gang_topology="required=zone, preferred=example.com/row",
        )
    )
    assert asked == GangRef(
        name="train", minimum=6, timeout_s=30, required="topology.kubernetes.io/zone", preferred="example.com/row"
    )


def test_the_size_may_be_that_of_the_job_that_creates_the_pods() -> None:
    owner = OwnerReference(kind="Job", name="train-7", controller=True)
    asked = read(kerf(gang="train", gang_size="owner"), owner=owner)
    assert asked == GangRef(name="job.batch/train-7", source="job.batch/train-7")
    with pytest.raises(RequestError, match="no Job made this pod"):
        read(kerf(gang="train", gang_size="owner"))


@pytest.mark.parametrize(
    ("found", "source"),
    [
        ({"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, "podgroup.scheduling.x-k8s.io/g"),
        ({"annotations": {"scheduling.k8s.io/group-name": "g"}}, "podgroup.scheduling.volcano.sh/g"),
        ({"annotations": {"scheduling.volcano.sh/group-name": "g"}}, "podgroup.scheduling.volcano.sh/g"),
        ({"annotations": {"pod-group-name": "g"}}, "podgroup.scheduling.run.ai/g"),
        ({"scheduling_group": SchedulingGroup(pod_group_name="g")}, "podgroup.scheduling.k8s.io/g"),
        (
            {"labels": {"training.kubeflow.org/job-name": "g"}, "owner": OwnerReference(kind="PyTorchJob", name="g")},
            "pytorchjob.kubeflow.org/g",
        ),
        (
            {
                "labels": {
                    "training.kubeflow.org/job-name": "g",
                    "training.kubeflow.org/operator-name": "mpi-operator",
                },
                "owner": OwnerReference(kind="Job", name="g-launcher"),
            },
            "mpijob.kubeflow.org/g",
        ),
        (
            {
                "labels": {
                    "training.kubeflow.org/job-name": "g",
                    "training.kubeflow.org/operator-name": "tfjob-controller",
                }
            },
            "tfjob.kubeflow.org/g",
        ),
    ],
)
def test_what_others_write_on_their_pods_names_the_object_that_has_the_size(found: dict[str, Any], source: str) -> None:
    assert read(**found) == GangRef(name=source, source=source)


def test_parts_of_a_jobset_and_of_a_workload_are_read() -> None:
    jobset = read(labels={"jobset.sigs.k8s.io/jobset-name": "js", "jobset.sigs.k8s.io/replicatedjob-name": "workers"})
    assert jobset is not None
    assert (jobset.source, jobset.part) == ("jobset.jobset.x-k8s.io/js", "workers")
    workload = read(workload_ref=WorkloadReference(name="w", pod_group="workers", pod_group_replica_key="2"))
    assert workload is not None
    assert (workload.source, workload.part, workload.instance) == ("workload.scheduling.k8s.io/w", "workers", "2")


EXCLUSIVE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "pool"}


@pytest.mark.parametrize(("notes", "part", "instance"), [
    ({"batch.kubernetes.io/job-completion-index": "0"} | EXCLUSIVE, "workers", ""),
    ({"batch.kubernetes.io/job-completion-index": "1"} | EXCLUSIVE, "workers/followers", "9f2b"),
    ({"batch.kubernetes.io/job-completion-index": "1"}, "workers", ""),
    ({"batch.kubernetes.io/job-completion-index": "1", "alpha.jobset.sigs.k8s.io/node-selector": "true"} | EXCLUSIVE,
     "workers", ""),
])  # fmt: skip
def test_the_other_pods_of_a_job_in_a_topology_of_its_own_are_a_part_by_themselves(
    notes: dict[str, str], part: str, instance: str
) -> None:
    labels = {"jobset-name": "js", "replicatedjob-name": "workers", "job-key": "9f2b"}
    found = read(notes, {f"jobset.sigs.k8s.io/{key}": value for key, value in labels.items()})
    assert found is not None
    assert (found.source, found.part, found.instance) == ("jobset.jobset.x-k8s.io/js", part, instance)


def test_a_pod_group_of_kueue_has_its_size_on_the_pod() -> None:
    asked = read(
        annotations={
            "kueue.x-k8s.io/pod-group-total-count": "3",
            "kueue.x-k8s.io/podset-required-topology": "example.com/rack",
        },
        labels={"kueue.x-k8s.io/pod-group-name": "g"},
    )
    assert asked == GangRef(name="kueue/g", minimum=3, required="example.com/rack")


def test_none_takes_a_pod_out_of_every_gang() -> None:
    assert read(kerf(gang="none"), labels={"scheduling.x-k8s.io/pod-group": "g"}) is None


def test_kerfs_annotations_take_precedence_over_other_gang_formats() -> None:
    asked = read(kerf(gang="mine", gang_size="2"), labels={"scheduling.x-k8s.io/pod-group": "g"})
    assert asked == GangRef(name="mine", minimum=2)


@pytest.mark.parametrize(("notes", "says"), [
    (kerf(gang_min="2"), "gang-min stands without"),
    (kerf(gang="g", gang_size="4", gang_min="5"), "from 1 to 4"),
    (kerf(gang="g", gang_size="4", gang_timeout="0"), "from 1 to 86400"),
    (kerf(gang="g", gang_size="4", gang_incomplete="evict"), "evict-after="),
    (kerf(gang="g", gang_size="4", gang_incomplete="evict-after=0"), "from 1 to 86400"),
    (kerf(gang="g", gang_size="4", gang_topology="rack"), "required=LEVEL"),
    (kerf(gang="g", gang_size="4", gang_topology="required=rack,required=zone"), "required=LEVEL"),
    (kerf(gang="g", gang_size="4", gang_topology="required=not a label"), "required=LEVEL"),
    ({"pod-group-name": "g" * 254}, "at most 253"),
    ({"scheduling.volcano.sh/group-name": "g\x1b[2J"}, "at most 253"),
    ({"scheduling.k8s.io/group-name": "G"}, "at most 253"),
    ({"scheduling.volcano.sh/group-name": "g", "volcano.sh/task-spec": "t" * 254}, "at most 253"),
    ({"kueue.x-k8s.io/podset-required-topology": "a" * 253}, "must be a node label"),
    ({"kueue.x-k8s.io/podset-preferred-topology": "rack\x1b[2J"}, "must be a node label"),
])  # fmt: skip
def test_an_invalid_policy_is_refused_with_what_to_write(notes: dict[str, str], says: str) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        read(notes)
    assert refused.value.code == "bad-gang"


@pytest.mark.parametrize(("labels", "source", "part", "instance"), [
    ({"ray.io/cluster": "r", "ray.io/group": "headgroup"}, "raycluster.ray.io/r", "headgroup", ""),
    ({"grove.io/podgang": "g", "grove.io/podclique": "g-decode"}, "podgang.scheduler.grove.io/g", "g-decode", ""),
    ({"leaderworkerset.sigs.k8s.io/name": "l", "leaderworkerset.sigs.k8s.io/group-key": "k1",
      "leaderworkerset.sigs.k8s.io/worker-index": "0"},
     "leaderworkerset.leaderworkerset.x-k8s.io/l", "leader", "k1"),
    ({"leaderworkerset.sigs.k8s.io/name": "l", "leaderworkerset.sigs.k8s.io/group-key": "k1",
      "leaderworkerset.sigs.k8s.io/worker-index": "3"},
     "leaderworkerset.leaderworkerset.x-k8s.io/l", "workers", "k1"),
])  # fmt: skip
def test_the_subgroup_of_a_pod_is_what_its_controller_writes(
    labels: dict[str, str], source: str, part: str, instance: str
) -> None:
    assert read(labels=labels) == GangRef(name=source, source=source, part=part, instance=instance)


@pytest.mark.parametrize(("text", "size"), [("4", 4), ("", 0), ("many", 0), ("99999", MOST_MEMBERS)])
def test_a_group_of_a_leader_worker_set_has_the_size_that_its_pods_have_annotated(text: str, size: int) -> None:
    prefix = "leaderworkerset.sigs.k8s.io/"
    found = read({f"{prefix}size": text}, labels={f"{prefix}name": "l", f"{prefix}group-key": "k1"})
    assert found is not None
    assert found.group_size == size


def test_subgroups_of_volcano_and_kai_are_read() -> None:
    volcano = read({"scheduling.volcano.sh/group-name": "g", "volcano.sh/task-spec": "GPU_Workers"})
    kai = read({"pod-group-name": "g"}, labels={"kai.scheduler/subgroup-name": "decode"})
    assert volcano is not None
    assert kai is not None
    assert (volcano.part, kai.part) == ("GPU_Workers", "decode")


def test_subgroups_in_an_annotation_are_a_tree() -> None:
    found = read(kerf(gang="g", gang_subgroups="router=1, r1/prefill=2,r1/decode=4@rack,r1@zone", gang_min="8",
                      gang_subgroup="r1/decode"))  # fmt: skip
    assert found == GangRef(
        name="g",
        part="r1/decode",
        minimum=8,
        subgroups=(
            Subgroup(name="router", minimum=1),
            Subgroup(
                name="r1",
                required="topology.kubernetes.io/zone",
                subgroups=(
                    Subgroup(name="r1/prefill", minimum=2),
                    Subgroup(name="r1/decode", minimum=4, required="topology.kubernetes.io/rack"),
                ),
            ),
        ),
    )


@pytest.mark.parametrize(("notes", "says"), [
    (kerf(gang="g", gang_subgroups="head=1"), "is '', which is none of head"),
    (kerf(gang="g", gang_subgroups="head=1", gang_subgroup="worker"), "'worker', which is none of head"),
    (kerf(gang="g", gang_subgroups="head", gang_subgroup="head"), "NAME=PODS"),
    (kerf(gang="g", gang_subgroups="head=one", gang_subgroup="head"), "NAME=PODS"),
    (kerf(gang="g", gang_subgroups="a=1,a=2", gang_subgroup="a"), "NAME=PODS"),
    (kerf(gang="g", gang_subgroups="a=1@not a label", gang_subgroup="a"), "NAME=PODS"),
    (kerf(gang="g", gang_subgroups="a=1,a/b=2", gang_subgroup="a/b"), "a has both pods and subgroups"),
    (kerf(gang="g", gang_subgroups="a=1,b@rack", gang_subgroup="a"), "b has no pods"),
    (kerf(gang_subgroups="a=1", gang_subgroup="a"), "stands without it"),
    (kerf(gang="g", gang_size="2", gang_subgroup="a"), "gang-subgroup stands without it"),
])  # fmt: skip
def test_subgroups_that_make_no_sense_are_refused_with_what_to_write(notes: dict[str, str], says: str) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        read(notes)
    assert refused.value.code == "bad-gang"


def test_the_pod_that_cleans_up_after_a_ray_cluster_is_placed_by_itself() -> None:
    """It has the head's labels, and runs when all other pods are gone."""
    labels = {"ray.io/cluster": "r", "ray.io/group": "headgroup", "ray.io/node-type": "redis-cleanup"}
    assert read(labels=labels) is None
    assert read(labels=labels | {"ray.io/node-type": "head"}) is not None


@pytest.mark.parametrize(("text", "said"), [
    ("/".join(["a"] * 3000) + "=1", "3000 subgroups deep; write at most 8"),
    (",".join(f"s{i}=1" for i in range(1001)), "more than 1000 subgroups"),
])  # fmt: skip
def test_a_tree_that_no_gang_has_is_refused_before_it_is_built(text: str, said: str) -> None:
    """A few thousand levels would end the process that reads the pod, again at each start."""
    notes = kerf(gang="g", gang_subgroups=text, gang_subgroup=text.rpartition(",")[2].partition("=")[0])
    with pytest.raises(RequestError, match=said):
        read(notes)
