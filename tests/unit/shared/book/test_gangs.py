"""Which members of a gang count, by the pods in the book."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.book.book import Book
from shared.book.gangs import Gangs
from shared.contracts.facts import Put
from shared.model.kinds import Object
from shared.model.kube_object import OwnerReference
from shared.model.objects import Pod, PodClaim
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

    def restarted(self) -> Gangs:
        fresh = Gangs(self.book)
        fresh.start_over(0.0)
        return fresh


def test_ended_members_count_after_a_restart_when_their_claims_are_gone() -> None:
    """A claim made from a template ends with its pod, and the pod is refused for it from then on."""
    ended = [build.newer(member(f"p{i}", job="j", claim=f"c{i}"), phase="Succeeded") for i in range(2)]
    world = World(*ended, member("again", job="j"))
    assert all("does not exist" in world.book.pods[pod.metadata.uid].refusal for pod in ended)
    for gangs in (world.gangs, world.restarted()):
        gang = gangs.by_key["team/g"]
        assert (len(gang.done), gang.has, gang.gathered) == (2, 2, True)


def test_a_refused_member_does_not_wait_whether_it_is_seen_or_taken_over() -> None:
    world = World(member("a", size=2), member("b", size=2, min_runtime="soon"))
    for gangs in (world.gangs, world.restarted()):
        gang = gangs.by_key["team/g"]
        assert (list(gang.waiting), len(gang.known), gang.gathered) == (["uid-team-a"], 2, False)
