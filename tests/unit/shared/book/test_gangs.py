"""Which members of a gang count, by the pods in the book."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.book.book import Book
from shared.book.gangs import Gangs, GangState
from shared.contracts.facts import Put
from shared.kube.gangs.decoder import decoder_of
from shared.model.kinds import Object
from shared.model.kube_object import Meta, OwnerReference
from shared.model.objects import Gang, Pod, PodClaim, SchedulingGroup
from tests.support import build


def member(name: str, *, size: int = 3, job: str = "", claim: str = "", **notes: str) -> Pod:
    annotations = {"kerf.dev/gang": "g", "kerf.dev/gang-size": str(size)}
    annotations |= {f"kerf.dev/{key.replace('_', '-')}": text for key, text in notes.items()}
    asks: dict[str, Any] = {"resource_claims": (PodClaim(name="mine", resource_claim_name=claim),)} if claim else {}
    made = build.pod(name, annotations=annotations, **asks) if claim else build.gpu_pod(
        name, gpus=1, annotations=annotations)  # fmt: skip
    return owned(made, job)


def owned(pod: Pod, job: str) -> Pod:
    owner = (OwnerReference(kind="Job", name=job, uid=f"uid-{job}", controller=True),) if job else ()
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=owner))


def of_object(name: str, source: str, job: str = "") -> Pod:
    """A pod of the JobSet or PodGroup t."""
    if source == "jobset":
        return owned(build.gpu_pod(name, gpus=1, labels={"jobset.sigs.k8s.io/jobset-name": "t"}), job)
    if source == "coscheduling":
        return owned(build.gpu_pod(name, gpus=1, labels={"scheduling.x-k8s.io/pod-group": "t"}), job)
    return owned(build.gpu_pod(name, gpus=1, scheduling_group=SchedulingGroup(pod_group_name="t")), job)


def described(kind: str, minimum: int, uid: str = "uid-1") -> Gang:
    return Gang(
        metadata=Meta(name=f"{kind}/t", namespace="team", uid=uid, resource_version=build.next_version()),
        minimum=minimum,
    )


def ended(pod: Pod, phase: str = "Succeeded") -> Pod:
    return build.newer(pod, phase=phase)


def placed(pod: Pod) -> Pod:
    return build.bound(pod, "n")


class World:
    """A book and its gangs, which see each fact as it comes."""

    def __init__(self, *seen: Object) -> None:
        self.book = Book()
        self.gangs = Gangs(self.book)
        self.put(build.node("n"), *seen)

    def put(self, *seen: Object, now: float = 0.0) -> None:
        for one in seen:
            self.book.apply(Put(object=one))
            if isinstance(one, Pod):
                state = self.book.pods[one.metadata.uid]
                self.gangs.see(state, now, able=not state.refusal)
            if isinstance(one, Gang):
                for uid in self.gangs.named_by(one):
                    self.gangs.see(self.book.pods[uid], now)

    def gang(self, key: str = "team/g") -> GangState:
        return self.gangs.by_key[key]

    def restarted(self) -> Gangs:
        fresh = Gangs(self.book)
        fresh.start_over(0.0)
        return fresh


def test_ended_members_count_after_a_restart_when_their_claims_are_gone() -> None:
    """A claim made from a template ends with its pod, and the pod is refused for it from then on."""
    over = [ended(member(f"p{i}", job="j", claim=f"c{i}")) for i in range(2)]
    world = World(*over, member("again", job="j"))
    assert all("does not exist" in world.book.pods[pod.metadata.uid].refusal for pod in over)
    for gangs in (world.gangs, world.restarted()):
        gang = gangs.by_key["team/g"]
        assert (len(gang.done), gang.has, gang.gathered) == (2, 2, True)


def test_a_refused_member_does_not_wait_whether_it_is_seen_or_taken_over() -> None:
    world = World(member("a", size=2), member("b", size=2, min_runtime="soon"))
    for gangs in (world.gangs, world.restarted()):
        gang = gangs.by_key["team/g"]
        assert (list(gang.waiting), len(gang.known), gang.gathered) == (["uid-team-a"], 2, False)


def test_a_run_of_several_jobs_has_the_object_that_describes_it() -> None:
    """Each replica of a JobSet is a Job: one has ended well, and the pods of the others come again."""
    first, *others = (of_object(f"p{i}", "jobset", job=f"j{i}") for i in range(3))
    world = World(described("jobset.jobset.x-k8s.io", 3), ended(first), *(ended(pod, "Failed") for pod in others))
    world.put(*(of_object(f"again{i}", "jobset", job=f"j{i}") for i in (1, 2)))
    for gangs in (world.gangs, world.restarted()):
        gang = gangs.by_key["team/jobset.jobset.x-k8s.io/t"]
        assert (gang.has, gang.need, gang.gathered) == (1, 2, True)


def test_finished_pods_of_an_earlier_run_do_not_count_for_a_later_one() -> None:
    world = World(*(placed(member(f"old{i}", job="one")) for i in range(3)))
    world.put(*(ended(world.book.pods[f"uid-team-old{i}"].pod) for i in range(3)))
    world.put(*(placed(member(f"new{i}", job="two")) for i in range(2)), member("new2", job="two"), now=5.0)
    gang = world.gang()
    assert (gang.has, gang.lacking_since, gang.incomplete_since) == (2, 5.0, 5.0)
    world.put(placed(world.book.pods["uid-team-new2"].pod))
    assert (gang.lacking_since, gang.incomplete_since, gang.whole_runs) == (None, None, {"uid-one", "uid-two"})
    world.put(ended(world.book.pods["uid-team-new0"].pod))
    assert gang.incomplete_since is None, "its own members that ended well count"


def test_a_group_that_is_made_anew_under_its_name_has_not_run() -> None:
    kind = "podgroup.scheduling.k8s.io"
    world = World(described(kind, 2), *(placed(of_object(f"a{i}", "pod group")) for i in range(2)))
    gang = world.gang(f"team/{kind}/t")
    assert gang.whole_runs == {"uid-1"}
    world.put(*(ended(world.book.pods[f"uid-team-a{i}"].pod) for i in range(2)))
    assert gang.whole_runs == {"uid-1"}, "what has ended has run all the same"
    world.put(described(kind, 2, "uid-2"), of_object("b0", "pod group"))
    gang = world.gang(f"team/{kind}/t")
    assert (gang.has, gang.gathered, gang.whole_runs) == (0, False, {"uid-1"})
    for i in range(2):
        world.gangs.forget(f"uid-team-a{i}", 0.0)
    assert gang.whole_runs == set()


def test_the_runs_of_a_group_that_outlasts_them_are_those_of_its_jobs() -> None:
    """Users write the PodGroups of coscheduling, and each Job of a CronJob names the same one."""
    kind = "podgroup.scheduling.x-k8s.io"
    world = World(described(kind, 2), *(ended(of_object(f"a{i}", "coscheduling", job="one")) for i in range(2)))
    world.put(of_object("b0", "coscheduling", job="two"))
    gang = world.gang(f"team/{kind}/t")
    assert (gang.has, gang.gathered) == (0, False)
    world.put(of_object("again", "coscheduling", job="one"))
    assert gang.has == 2


@pytest.mark.parametrize("policy", ["", "LeaderReady"])
@pytest.mark.parametrize(("made_with", "size"), [(2, 4), (4, 2)])
def test_a_group_of_a_leader_worker_set_keeps_its_size_while_others_are_made_with_a_new_one(
    made_with: int, size: int, policy: str
) -> None:
    prefix, title = "leaderworkerset.sigs.k8s.io/", "leaderworkerset.leaderworkerset.x-k8s.io"

    def pod(group: int, index: int, annotated: int) -> Pod:
        labels = {"name": "t", "group-key": f"k{group}", "worker-index": str(index)}
        return build.gpu_pod(
            f"t-{group}-{index}",
            gpus=1,
            labels={prefix + key: text for key, text in labels.items()},
            annotations={f"{prefix}size": str(annotated)},
        )

    spec = {"leaderWorkerTemplate": {"size": size}, "startupPolicy": policy}
    meta = {"name": "t", "namespace": "team", "uid": "uid-t", "resourceVersion": build.next_version()}
    raw = msgspec.json.encode({"metadata": meta, "spec": spec})
    world = World(decoder_of("leaderworkersets", "leaderworkerset.x-k8s.io").decode(raw))
    for group, count in ((0, made_with), (1, size)):
        world.put(*(pod(group, index, count) for index in range(1, count)))
        key = f"team/{title}/t/{'workers/' if policy else ''}k{group}"
        assert world.gang(key).gathered == bool(policy)
        world.put(pod(group, 0, count))
        assert (world.gang(key).minimum, world.gang(key).gathered) == (count - 1 if policy else count, True)


def test_figures_are_those_that_members_have_annotated_now() -> None:
    rack = "topology.kubernetes.io/rack"
    before = {"gang_min": "3", "gang_timeout": "90", "gang_incomplete": "keep", "gang_topology": "required=rack"}
    world = World(*(member(f"p{i}", size=4, **before) for i in range(4)))
    gang = world.gang()
    assert (gang.minimum, gang.timeout_s, gang.incomplete_s, gang.required) == (3, 90, 0, rack)
    after = {"gang_min": "2", "gang_timeout": "30", "gang_incomplete": "evict-after=60"}
    world.put(*(member(f"p{i}", size=4, **after) for i in range(3)))
    assert (gang.minimum, gang.timeout_s, gang.incomplete_s) == (3, 90, 0), "where they disagree the largest counts"
    world.put(member("p3", size=4, **after))
    assert (gang.minimum, gang.timeout_s, gang.incomplete_s, gang.required) == (2, 30, 60, "")
    world.put(*(member(f"p{i}", size=4) for i in range(4)))
    assert (gang.minimum, gang.timeout_s, gang.incomplete_s) == (4, 0, None)


def test_members_that_have_ended_or_are_gone_have_no_say_in_the_figures() -> None:
    world = World(*(ended(member(f"old{i}", size=4, job="one")) for i in range(4)))
    assert world.gang().minimum == 4
    world.put(member("large", size=3, job="two"), member("new", size=2, job="two"))
    for gangs in (world.gangs, world.restarted()):
        assert gangs.by_key["team/g"].minimum == 3
    world.gangs.forget("uid-team-large", 0.0)
    assert (world.gang().minimum, world.gang().gathered) == (2, False)


def test_subgroups_that_are_annotated_anew_count_their_pods_anew() -> None:
    def part(name: str, leaf: str, subgroups: str) -> Pod:
        return member(name, gang_subgroup=leaf, gang_subgroups=subgroups)

    world = World(part("p0", "a", "a=1,b=2"), part("p1", "b", "a=1,b=2"), part("p2", "b", "a=1,b=2"))
    gang = world.gang()
    assert (gang.counted("waiting"), gang.gathered) == ({"a": 1, "b": 2}, True)
    world.put(part("p0", "c", "c=1,b=2"), part("p1", "b", "c=1,b=2"))
    assert gang.counted("waiting") == {"c": 1, "b": 2}, "as most of them have it"
    world.put(part("p2", "c", "c=1,b=2"))
    assert (gang.counted("waiting"), gang.gathered) == ({"c": 2, "b": 1}, False)


def test_an_object_gives_the_size_and_annotations_the_rest() -> None:
    kind = "podgroup.scheduling.k8s.io"
    pods = [of_object(f"a{i}", "pod group") for i in range(2)]
    notes = {"kerf.dev/gang-timeout": "30"}
    slow = msgspec.structs.replace(pods[1].metadata, annotations=notes)
    given = msgspec.structs.replace(described(kind, 3), timeout_s=20, required="zone")
    world = World(given, pods[0], msgspec.structs.replace(pods[1], metadata=slow))
    gang = world.gang(f"team/{kind}/t")
    assert (gang.minimum, gang.timeout_s, gang.required) == (3, 30, "zone")
    world.put(msgspec.structs.replace(described(kind, 2), timeout_s=10))
    assert (gang.minimum, gang.timeout_s, gang.required) == (2, 30, "")
    world.gangs.forget("uid-team-a1", 0.0)
    assert gang.timeout_s == 10
