"""Packing of MIG instances as two papers of 2025 measure it: Kerf's policy core beside first fit and its like.

`acceptance` follows arXiv 2511.18906: pods that request instances come and go, each is tried once, and what counts is
the part that finds a place. Its abstract says that they come online, in several mixes and under heavy load, and that
its scheduler takes the placement after which fragmentation has grown least. `makespan` follows arXiv 2512.16099: on one
node of four GPUs jobs that do not fit wait, and what counts is when the last one ends, with and without moves of
running jobs. Everything else is ours: 100 A100 of 80 GB, the mixes, lives and load, the formula of fragmentation, what
a move costs. Nothing of contention between instances is in it, which the second paper's scheduler avoids, too.
"""

from __future__ import annotations

import heapq
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import msgspec

from bench.openb.fill import place
from services.placement.engine.engine import Engine
from services.placement.explain.consolidation_advice import Goal, advise
from services.placement.explain.steps import finish
from shared.book.book import Book
from shared.book.mig import best_start, possible
from shared.book.states import PodState, pod_state
from shared.contracts.explain import Move
from shared.contracts.facts import Put
from shared.model import names
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import Grant
from shared.model.kube_object import Meta, Quantities
from shared.model.mig import GEOMETRIES, MigProfile, geometry_of, mask_at
from shared.model.objects import Container, Node, NodeStatus, Pod, PodSpec, Resources

MODEL, MEMORY_MIB = "NVIDIA-A100-SXM4-80GB", 81_920
GEOMETRY = geometry_of(MODEL, MEMORY_MIB) or 0
SLICES = GEOMETRIES[GEOMETRY].memory_slices
PROFILES = tuple(p for p in GEOMETRIES[GEOMETRY].profiles if not p.media)
"""1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb."""
_UNCHANGED = (
    ("7g.80gb",),
    ("4g.40gb", "3g.40gb"),
    ("2g.20gb", "2g.20gb", "2g.20gb", "1g.10gb"),
    ("1g.20gb", "1g.20gb", "1g.10gb", "1g.10gb", "1g.10gb"),
)
STATIC = tuple(p for gpu in _UNCHANGED for name in gpu for p in PROFILES if p.name == name)
"""What four GPUs give without repartitioning."""
MIXES: dict[str, tuple[int, ...]] = {
    "uniform": (1, 1, 1, 1, 1, 1),
    "small": (30, 25, 20, 10, 10, 5),
    "large": (5, 10, 10, 20, 25, 30),
    "bimodal": (30, 15, 5, 5, 15, 30),
}
"""How often each of PROFILES is asked for."""
NODES, GPUS = 25, 4
JOBS, JOB_S, QUEUE_OFFERED = 200, (60.0, 600.0), 1.2
MOVE_S = 10.0
"""By how much a moved job ends later."""
ORDERS = ("in-order", "backfill")
"""Whether jobs behind one that does not fit wait for it, or start where they fit."""


class Fleet(ABC):
    """GPUs that give instances to jobs, by number."""

    @abstractmethod
    def start(self, job: int, profile: MigProfile) -> bool:
        """Gives the job an instance; False where there is none."""

    @abstractmethod
    def end(self, job: int) -> None: ...

    @abstractmethod
    def start_by_moves(self, job: int, profile: MigProfile) -> list[int]:
        """The same by moving others. Returns which have moved; none where that does not help either."""


Choice = Callable[[list[int], MigProfile, int], tuple[int, int] | None]
"""From the masks of GPUs, a profile and the GPU that was chosen last: a GPU and a start."""


class Masks(Fleet):
    def __init__(self, gpus: int, choose: Choice) -> None:
        self._masks, self._choose, self._last = [0] * gpus, choose, -1
        self._held: dict[int, tuple[int, int, MigProfile]] = {}

    def start(self, job: int, profile: MigProfile) -> bool:
        found = self._choose(self._masks, profile, self._last)
        if found is None:
            return False
        self._take(job, profile, *found)
        return True

    def end(self, job: int) -> None:
        gpu, start, profile = self._held.pop(job)
        self._masks[gpu] &= ~mask_at(profile, start)

    def start_by_moves(self, job: int, profile: MigProfile) -> list[int]:
        """By the moves of the fewest slices: at most three jobs of one GPU, to wherever the policy puts them."""
        kept = (self._masks[:], dict(self._held), self._last)
        for moved in sorted(self._sets(profile), key=lambda jobs: sum(kept[1][one][2].memory_slices for one in jobs)):
            gpu = kept[1][moved[0]][0]
            for one in moved:
                self.end(one)
            at = best_start(GEOMETRY, profile, self._masks[gpu])
            if at is not None:
                self._take(job, profile, gpu, at)
                largest_first = sorted(moved, key=lambda one: -kept[1][one][2].memory_slices)
                if all(self.start(one, kept[1][one][2]) for one in largest_first):
                    return list(moved)
            self._masks, self._held, self._last = kept[0][:], dict(kept[1]), kept[2]
        return []

    def _sets(self, profile: MigProfile) -> Iterator[tuple[int, ...]]:
        for gpu, mask in enumerate(self._masks):
            jobs = [job for job, held in self._held.items() if held[0] == gpu]
            for count in (1, 2, 3):
                for some in combinations(jobs, count):
                    left = mask
                    for job in some:
                        left &= ~mask_at(self._held[job][2], self._held[job][1])
                    if possible(profile, left):
                        yield some

    def _take(self, job: int, profile: MigProfile, gpu: int, start: int) -> None:
        self._masks[gpu] |= mask_at(profile, start)
        self._held[job] = gpu, start, profile
        self._last = gpu


class Static(Fleet):
    """Four GPUs with instances that never change: a job gets the smallest free one that covers it."""

    def __init__(self) -> None:
        self._free = sorted(STATIC, key=_size)
        self._held: dict[int, MigProfile] = {}

    def start(self, job: int, profile: MigProfile) -> bool:
        found = next((p for p in self._free if _covers(p, profile)), None)
        if found is None:
            return False
        self._free.remove(found)
        self._held[job] = found
        return True

    def end(self, job: int) -> None:
        self._free = sorted([*self._free, self._held.pop(job)], key=_size)

    def start_by_moves(self, job: int, profile: MigProfile) -> list[int]:  # noqa: ARG002 - a move makes no room here
        return []


class Kerf(Fleet):
    """The policy core on a book, and for moves the search behind `kerf advise` and the preemptor's migrations."""

    def __init__(self, nodes: int, gpus: int, policy: str = "kerf") -> None:
        self._engine, self._grants = Engine(_book(nodes, gpus), policy), 0
        self._samples = {profile: _sample(profile) for profile in PROFILES}

    def start(self, job: int, profile: MigProfile) -> bool:
        state = self._arrive(job, profile)
        self._grants += 1
        if not place(self._engine, state, self._grants):
            return False
        self._bound(state)
        return True

    def end(self, job: int) -> None:
        book, uid = self._engine.book, f"p{job}"
        book.unhold(uid)
        state = book.pods.pop(uid)
        del book.uid_by_key[state.key]

    def start_by_moves(self, job: int, profile: MigProfile) -> list[int]:
        state = self._arrive(job, profile)
        advice = finish(advise(self._engine, Goal(states=(state,), waits=True), 0.0))
        if not advice.moves:
            del self._engine.book.pods[state.uid]
            return []
        self._carry_out(state, advice.node, advice.moves)
        return [int(move.name.removeprefix("p")) for move in advice.moves]

    def _carry_out(self, state: PodState, node: str, moves: tuple[Move, ...]) -> None:
        book = self._engine.book
        for move in moves:
            book.unhold(move.name)
        for pod, to in ((state, node), *((book.pods[move.name], move.target) for move in moves)):
            found = self._engine.decide(pod, self._engine.only(to))
            if found is None:
                raise ValueError(f"{pod.uid} has no place on {to}, though the moves were tried")
            self._grants += 1
            book.hold(pod.uid, to, Grant(grant_id=f"g{self._grants}", term=1, containers=found.containers))
            self._bound(pod)

    def _arrive(self, job: int, profile: MigProfile) -> PodState:
        sample = self._samples[profile]
        meta = msgspec.structs.replace(sample.pod.metadata, name=f"p{job}", uid=f"p{job}")
        pod = msgspec.structs.replace(sample.pod, metadata=meta)
        state = PodState(pod=pod, uid=f"p{job}", demand=sample.demand, request=sample.request)
        self._engine.book.pods[state.uid] = state
        return state

    def _bound(self, state: PodState) -> None:
        self._engine.book.uid_by_key[state.key] = state.uid
        state.seen_bound = True


def _size(profile: MigProfile) -> tuple[int, int]:
    return profile.memory_slices, profile.compute_slices


def _covers(profile: MigProfile, asked: MigProfile) -> bool:
    return profile.memory_slices >= asked.memory_slices and profile.compute_slices >= asked.compute_slices


def first_fit(masks: list[int], profile: MigProfile, last: int) -> tuple[int, int] | None:  # noqa: ARG001 - a Choice
    return next(((gpu, starts[0]) for gpu, mask in enumerate(masks) if (starts := possible(profile, mask))), None)


def round_robin(masks: list[int], profile: MigProfile, last: int) -> tuple[int, int] | None:
    order = [(last + 1 + step) % len(masks) for step in range(len(masks))]
    return next(((gpu, starts[0]) for gpu in order if (starts := possible(profile, masks[gpu]))), None)


def best_fit(masks: list[int], profile: MigProfile, last: int) -> tuple[int, int] | None:  # noqa: ARG001
    return _by_free(masks, profile, 1)


def worst_fit(masks: list[int], profile: MigProfile, last: int) -> tuple[int, int] | None:  # noqa: ARG001
    return _by_free(masks, profile, -1)


def least_fragmentation(masks: list[int], profile: MigProfile, last: int) -> tuple[int, int] | None:  # noqa: ARG001
    """The GPU and the start after which fragmentation has grown least."""
    found = (
        (FRAGMENTATION[mask | mask_at(profile, start)] - FRAGMENTATION[mask], gpu, start)
        for gpu, mask in enumerate(masks)
        for start in possible(profile, mask)
    )
    best = min(found, default=None)
    return None if best is None else best[1:]


def _by_free(masks: list[int], profile: MigProfile, sign: int) -> tuple[int, int] | None:
    """By the slices that are free, at the start that leaves the most placements."""
    fitting = [(sign * (SLICES - mask.bit_count()), gpu) for gpu, mask in enumerate(masks) if possible(profile, mask)]
    if not fitting:
        return None
    gpu = min(fitting)[1]
    start = best_start(GEOMETRY, profile, masks[gpu])
    return None if start is None else (gpu, start)


def _fragmentation(mask: int) -> int:
    """Slices of placements that something stands in the way of, of all profiles for which enough slices are free."""
    free = SLICES - mask.bit_count()
    return sum(
        p.memory_slices for p in PROFILES if p.memory_slices <= free for start in p.starts if mask_at(p, start) & mask
    )


FRAGMENTATION = [_fragmentation(mask) for mask in range(1 << SLICES)]

CHOICES: dict[str, Choice] = {
    "first-fit": first_fit,
    "round-robin": round_robin,
    "best-fit": best_fit,
    "worst-fit": worst_fit,
    "least-fragmentation": least_fragmentation,
}
POLICIES = (*CHOICES, "kerf")
QUEUED_POLICIES = ("static", *POLICIES)


def make_fleet(policy: str, nodes: int, gpus: int) -> Fleet:
    if policy == "static":
        return Static()
    return Kerf(nodes, gpus) if policy == "kerf" else Masks(nodes * gpus, CHOICES[policy])


class Accepted(msgspec.Struct, frozen=True):
    accepted_percent: float
    """Of the pods that came after the GPUs had filled."""
    allocation_percent: float
    """Mean of the memory slices given meanwhile."""


def acceptance(policy: str, mix: str, offered: float, seed: int) -> Accepted:
    """One pod each tick. Lives are even between one tick and twice their mean; two means to settle, four that count."""
    random_, weights = random.Random(f"acceptance {mix} {offered} {seed}"), MIXES[mix]
    fleet, capacity = make_fleet(policy, NODES, GPUS), NODES * GPUS * SLICES
    size = sum(p.memory_slices * w for p, w in zip(PROFILES, weights, strict=True)) / sum(weights)
    life = round(offered * capacity / size)
    ends: list[tuple[int, int, int]] = []
    used = given = taken = 0
    for tick in range(6 * life):
        while ends and ends[0][0] <= tick:
            _, job, slices = heapq.heappop(ends)
            fleet.end(job)
            used -= slices
        profile, lasts = random_.choices(PROFILES, weights)[0], random_.randint(1, 2 * life)
        placed = fleet.start(tick, profile)
        if placed:
            heapq.heappush(ends, (tick + lasts, tick, profile.memory_slices))
            used += profile.memory_slices
        if tick >= 2 * life:
            given += placed
            taken += used
    return Accepted(100 * given / (4 * life), 100 * taken / (4 * life * capacity))


class Finished(msgspec.Struct, frozen=True):
    makespan_s: float
    moves: int


class _Job(msgspec.Struct, frozen=True):
    at_s: float
    profile: MigProfile
    lasts_s: float


def makespan(policy: str, mix: str, seed: int, *, order: str, moves: bool) -> Finished:
    """Jobs come at random to four GPUs, a fifth more than these can run meanwhile. A move is made only for the job that
    has waited longest."""
    fleet, waiting, jobs = make_fleet(policy, 1, GPUS), deque[int](), _jobs(mix, seed)
    ends: dict[int, float] = {}
    now, moved, arrived = 0.0, 0, 0
    while arrived < len(jobs) or ends:
        nexts = [jobs[arrived].at_s] if arrived < len(jobs) else []
        now = min([*nexts, *ends.values()])
        for job in [job for job, at in ends.items() if at <= now]:
            fleet.end(job)
            del ends[job]
        while arrived < len(jobs) and jobs[arrived].at_s <= now:
            waiting.append(arrived)
            arrived += 1
        for job in list(waiting):
            oldest = job == waiting[0]
            started, others = fleet.start(job, jobs[job].profile), list[int]()
            if not started and moves and oldest:
                others = fleet.start_by_moves(job, jobs[job].profile)
            if started or others:
                waiting.remove(job)
                ends[job] = now + jobs[job].lasts_s
                for other in others:
                    ends[other] += MOVE_S
                moved += len(others)
            elif order == "in-order":
                break
    return Finished(now, moved)


def accepted_by_policy(offered: float, seeds: list[int]) -> dict[str, dict[str, float]]:
    """Percent by mix, and the mean of all; then the mean allocation."""
    result = {}
    for policy in POLICIES:
        runs = {mix: [acceptance(policy, mix, offered, seed) for seed in seeds] for mix in MIXES}
        means = {mix: _mean([run.accepted_percent for run in found]) for mix, found in runs.items()}
        allocated = _mean([run.allocation_percent for found in runs.values() for run in found])
        result[policy] = {"mean_percent": _mean([*means.values()]), **means, "allocation_percent": allocated}
    return result


def finished_by_policy(seeds: list[int]) -> dict[str, dict[str, dict[str, float]]]:
    """By policy and order of the queue: the mean makespan without and with moves, and how many a run made."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for policy in QUEUED_POLICIES:
        result[policy] = {}
        for order in ORDERS:
            still, moving = (
                [makespan(policy, mix, seed, order=order, moves=moves) for mix in MIXES for seed in seeds]
                for moves in (False, True)
            )
            result[policy][order] = {
                "without_moves_s": _mean([run.makespan_s for run in still]),
                "with_moves_s": _mean([run.makespan_s for run in moving]),
                "moves": _mean([run.moves for run in moving]),
            }
    return result


def least_makespan_s(mix: str, seed: int) -> float:
    """No policy ends sooner: the memory or the compute of all jobs, over that of the GPUs."""
    jobs, compute = _jobs(mix, seed), GEOMETRIES[GEOMETRY].compute_slices
    memory_s = sum(job.profile.memory_slices * job.lasts_s for job in jobs) / (GPUS * SLICES)
    return max(memory_s, sum(job.profile.compute_slices * job.lasts_s for job in jobs) / (GPUS * compute))


def mean_least_makespan_s(seeds: list[int]) -> float:
    return _mean([least_makespan_s(mix, seed) for mix in MIXES for seed in seeds])


def _mean(found: Sequence[float]) -> float:
    return round(sum(found) / len(found), 2)


def _jobs(mix: str, seed: int) -> list[_Job]:
    random_, weights = random.Random(f"makespan {mix} {seed}"), MIXES[mix]
    size = sum(p.memory_slices * w for p, w in zip(PROFILES, weights, strict=True)) / sum(weights)
    rate = QUEUE_OFFERED * GPUS * SLICES / (size * sum(JOB_S) / 2)
    jobs, at_s = [], 0.0
    for _ in range(JOBS):
        at_s += random_.expovariate(rate)
        jobs.append(_Job(at_s, random_.choices(PROFILES, weights)[0], random_.uniform(*JOB_S)))
    return jobs


def _book(nodes: int, gpus: int) -> Book:
    book = Book()
    for number in range(nodes):
        name = f"n{number:02d}"
        allocatable: Quantities = {"cpu": "1000", "memory": "8Ti", "pods": "1000"}
        meta = Meta(name=name, uid=name, resource_version="1")
        book.apply(Put(object=Node(metadata=meta, status=NodeStatus(allocatable=allocatable))))
        cut = tuple(
            Gpu(uuid=f"{name}/{i}", index=i, model=MODEL, memory_mib=MEMORY_MIB, mig_enabled=True, mig_on_demand=True)
            for i in range(gpus)
        )
        book.put_inventory(Inventory(node=name, boot_id="1", gpus=cut, strategies=("exclusive", "mig"), simulated=True))
        book.set_agent_trouble(name, "")
    return book


def _sample(profile: MigProfile) -> PodState:
    limits: dict[str, str | int] = {f"{names.PREFIX_MIG}{profile.name}": 1}
    container = Container(name="c", resources=Resources(limits=limits, requests={"cpu": "1"}))
    meta = Meta(name=profile.name, namespace="bench", uid=profile.name, resource_version="1")
    state = pod_state(Pod(metadata=meta, spec=PodSpec(scheduler_name=names.SCHEDULER_NAME, containers=(container,))))
    if state.refusal:
        raise ValueError(f"the pod {profile.name} makes no sense to the engine: {state.refusal}")
    return state
