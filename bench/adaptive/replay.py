"""One run: jobs arrive, wait, run at the rate that they really have, and end. Places are the real engine's."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator

import msgspec

from bench.adaptive.apps import APPS, App
from bench.adaptive.fleet import BY_NAME as MACHINE
from bench.adaptive.fleet import Offer, link_between, make_book
from bench.adaptive.truth import CHECKPOINT_S, FAULTS, Running, Truth
from services.placement.engine.engine import Engine, Place
from services.placement.engine.remote import RemotePlaces
from shared.book.states import PodState, pod_state
from shared.model import names
from shared.model.grant import Grant
from shared.model.kube_object import Meta, Quantities
from shared.model.mig import GEOMETRIES, geometry_of, profile_in
from shared.model.objects import Container, Pod, PodSpec, Resources

ACCEPTED = 2.0
"""`kerf.dev/max-slowdown` of the jobs, where it is declared."""
WRONG = 0.2
"""How wrong the declared profiles are at most."""
FIRM = 0.15
"""The part of the jobs that ask for `firm`: under a strategy that does not keep it they get whole GPUs."""
SHORTEST_S, LONGEST_S = 600.0, 7200.0


class Setup(msgspec.Struct, frozen=True):
    """A strategy by itself, or the adaptive choice."""

    name: str
    offer: Offer | None
    requests: tuple[str, ...]
    """What a job asks for; the next where there is no place for the one before."""
    remote: bool = False
    profile: bool = False
    bound: bool = False
    """Jobs declare `kerf.dev/max-slowdown`; those that agree to remote GPUs do so always."""


SETUPS = (
    Setup("exclusive", "exclusive", ("whole",)),
    Setup("mig", "mig", ("part", "whole")),
    Setup("mps", "mps", ("half", "whole")),
    Setup("interposer", "interposer", ("half",)),
    Setup("time_slice", "time_slice", ("half",)),
    Setup("remote", "interposer", ("half",), remote=True),
    Setup("adaptive", None, ("memory",), remote=True, profile=True),
)
ABLATION = (
    Setup("mps_weighed", "mps", ("memory", "whole"), profile=True),
    Setup("mps_weighed_bound", "mps", ("memory", "whole"), profile=True, bound=True),
    Setup("interposer_weighed_bound", "interposer", ("memory",), profile=True, bound=True),
    Setup("adaptive_local", None, ("memory",), profile=True, bound=True),
    Setup("adaptive_local_unbound", None, ("memory",), profile=True),
    Setup("mixed_unweighed", None, ("half", "whole"), remote=True),
)
"""Which part of the adaptive choice does what: single strategies with the same profiles and bound, the choice without
remote GPUs or without the bound, and its fleet with nothing weighed."""


class Job(msgspec.Struct, frozen=True):
    number: int
    app: App
    arrives_s: float
    work_s: float
    """Its run time on a V100 of its own."""
    faults_at: float
    """At this part of its work it has a fatal fault of the GPU; 2: never."""
    use: str
    """What it declares."""
    firm: bool
    """It asks for a memory limit that is enforced (`kerf.dev/isolation: firm`)."""


class Outcome(msgspec.Struct, frozen=True):
    throughput: float
    """Hours of work on a V100 of its own that were done in an hour, until the last arrival."""
    mean_slowdown: float
    """From arrival to end, of the run time on a V100 of its own."""
    p99_slowdown: float
    remote_bytes: int
    refused: int
    """Jobs that never got a place."""
    mean_run_slowdown: float
    """The same from start to end, of the run time on a GPU of its own of the model that it got."""
    beyond_bound: float
    """The part of the jobs of which that is more than ACCEPTED, whether or not they declared it."""
    by_strategy: dict[str, int]


class _Live(msgspec.Struct):
    job: Job
    running: Running
    gpu: str
    uid: str
    started_s: float
    left_s: float
    alone: float
    rate: float = 0.0
    since_s: float = 0.0
    since_checkpoint_s: float = 0.0
    faulted: bool = False


def make_jobs(seed: int, count: int, load: float) -> list[Job]:
    """`load`: the work that arrives, of what a V100 for each GPU could do."""
    rng = random.Random(seed)
    gpus = sum(machine.gpus for machine in MACHINE.values())
    mean_s = (LONGEST_S - SHORTEST_S) / math.log(LONGEST_S / SHORTEST_S)
    now, jobs = 0.0, []
    uses = {one.name: _declared(one, rng) for one in APPS}
    for number in range(count):
        now += rng.expovariate(load * gpus / mean_s)
        app = rng.choices(APPS, [one.weight for one in APPS])[0]
        work_s = SHORTEST_S * (LONGEST_S / SHORTEST_S) ** rng.random()
        faults_at = rng.random() if rng.random() < FAULTS else 2.0
        jobs.append(Job(number, app, now, work_s, faults_at, uses[app.name], rng.random() < FIRM))
    return jobs


def _declared(app: App, rng: random.Random) -> str:
    """Its profile in steps of a tenth, up to WRONG of it an error. SMs: what it needs of a GPU while it is busy."""
    parts = {"busy": app.busy, "sm": app.load / app.busy, "bandwidth": app.bandwidth}
    wrong = {key: part * (1 + rng.choice((-WRONG, -WRONG / 2, 0, WRONG / 2, WRONG))) for key, part in parts.items()}
    percents = ",".join(f"{key}={min(100, 10 * max(1, round(10 * part)))}%" for key, part in wrong.items())
    return f"{percents},request={app.request_us}us"


class Replay:
    def __init__(self, setup: Setup, seed: int) -> None:
        self._setup, self._truth = setup, Truth(seed)
        self._engine = Engine(make_book(setup.offer, remote=setup.remote))
        self._remote = RemotePlaces(self._engine)
        self._live: dict[int, _Live] = {}
        self._on: defaultdict[str, set[int]] = defaultdict(set)
        self._now = 0.0
        self._done_s = self._bytes = 0.0
        self._made = 0

    def run(self, jobs: list[Job]) -> Outcome:
        waiting: list[Job] = []
        ended: dict[int, tuple[float, float]] = {}
        used: defaultdict[str, int] = defaultdict(int)
        arrivals = iter(jobs)
        coming = next(arrivals, None)
        horizon_s, done_at_horizon = jobs[-1].arrives_s, 0.0
        while coming is not None or self._live:
            soonest_s, soonest = self._soonest()
            if coming is not None and coming.arrives_s <= soonest_s:
                self._advance(coming.arrives_s)
                waiting.append(coming)
                if coming.arrives_s == horizon_s:
                    done_at_horizon = self._done_s
                coming = next(arrivals, None)
            elif soonest is not None:
                self._advance(soonest_s)
                if self._fault(soonest):
                    continue
                live = self._leave(soonest)
                ran_s = self._now - live.started_s
                ended[soonest] = (self._now - live.job.arrives_s, ran_s * live.alone / live.job.work_s)
            for live in self._start(waiting):
                used[live.running.strategy if live.running.link is None else "remote"] += 1
        slow = sorted(ended[job.number][0] / job.work_s for job in jobs if job.number in ended)
        return Outcome(
            throughput=round(done_at_horizon / horizon_s, 3),
            mean_slowdown=round(sum(slow) / len(slow), 3),
            p99_slowdown=round(slow[math.ceil(0.99 * len(slow)) - 1], 3),
            remote_bytes=round(self._bytes),
            refused=len(waiting),
            mean_run_slowdown=round(sum(run for _, run in ended.values()) / len(ended), 3),
            beyond_bound=round(sum(run > ACCEPTED for _, run in ended.values()) / len(ended), 3),
            by_strategy=dict(sorted(used.items())),
        )

    # --- time -------------------------------------------------------------------------------------------------

    def _soonest(self) -> tuple[float, int | None]:
        """The next end or fault."""
        best: tuple[float, int | None] = (math.inf, None)
        for number, live in self._live.items():
            left_s = live.left_s
            if not live.faulted and live.job.faults_at < 1:
                left_s -= live.job.work_s * (1 - live.job.faults_at)
            at_s = live.since_s + max(0.0, left_s) / live.rate
            if at_s < best[0]:
                best = at_s, number
        return best

    def _advance(self, now_s: float) -> None:
        for live in self._live.values():
            done_s = (now_s - live.since_s) * live.rate
            live.left_s -= done_s
            live.since_checkpoint_s += done_s
            self._done_s += done_s
            if live.running.link is not None:
                self._bytes += done_s * live.job.app.copy_mib_per_s * (1 << 20)
            live.since_s = now_s
        self._now = now_s

    def _fault(self, number: int) -> bool:
        """Whether it is a fault that comes now, and not the end. What was done since a checkpoint is lost."""
        live = self._live[number]
        if live.faulted or live.job.faults_at > 1:
            return False
        live.faulted = True
        shares = live.running.strategy == "mps"
        for hit in [self._live[other] for other in self._on[live.gpu]] if shares else [live]:
            lost_s = hit.since_checkpoint_s % CHECKPOINT_S
            hit.left_s += lost_s
            self._done_s -= lost_s
            hit.since_checkpoint_s = 0.0
        return True

    def _rates(self, gpu: str) -> None:
        here = [self._live[number] for number in sorted(self._on[gpu])]
        for live in here:
            live.rate = self._truth.rate(live.running, [one.running for one in here if one is not live])

    # --- places -----------------------------------------------------------------------------------------------

    def _start(self, waiting: list[Job]) -> Iterator[_Live]:
        """Whoever fits starts, in order of arrival. What found no place does so for no other job of its kind."""
        failed: set[tuple[str, bool]] = set()
        for job in list(waiting):
            if (job.app.name, job.firm) in failed:
                continue
            live = self._place(job)
            if live is None:
                failed.add((job.app.name, job.firm))
                continue
            waiting.remove(job)
            yield live

    def _place(self, job: Job) -> _Live | None:
        for request in self._setup.requests:
            state = self._pod(job, request)
            place = self._engine.decide(state) or (self._remote.decide(state) if self._setup.remote else None)
            self._engine.meet(state, placed=place is not None)
            if place is not None:
                self._engine.book.pods[state.uid] = state
                self._engine.book.hold(
                    state.uid, place.node, Grant(grant_id=state.uid, term=1, containers=place.containers)
                )
                return self._run(job, place, state.uid)
        return None

    def _notes(self, job: Job, request: str) -> dict[str, str]:
        notes = {names.ANNOTATION_GPU_MEMORY_MIN: f"{job.app.memory_mib}Mi"} if request == "whole" else {}
        if job.firm:
            notes[names.ANNOTATION_ISOLATION] = "firm"
        if self._setup.profile:
            notes |= {names.ANNOTATION_GPU_USE: job.use}
        if self._setup.remote:
            notes |= {
                names.ANNOTATION_REMOTE: "allowed",
                names.ANNOTATION_GPU_CALLS: str(job.app.calls_per_s),
                names.ANNOTATION_GPU_TRANSFER: str(job.app.copy_mib_per_s),
            }
        if self._setup.remote or self._setup.bound:
            notes |= {names.ANNOTATION_MAX_SLOWDOWN: str(ACCEPTED)}
        return notes

    def _pod(self, job: Job, request: str) -> PodState:
        self._made += 1
        uid = f"j{job.number}-{self._made}"
        limits, cpus = _limits(job.app, request), str(job.app.cpus)
        container = Container(name="c", resources=Resources(limits=limits, requests={"cpu": cpus}))
        notes = self._notes(job, request)
        meta = Meta(name=uid, namespace="bench", uid=uid, resource_version="1", annotations=notes)
        state = pod_state(
            Pod(metadata=meta, spec=PodSpec(scheduler_name=names.SCHEDULER_NAME, containers=(container,)))
        )
        if state.refusal:
            raise ValueError(f"job {job.number} makes no sense to placement: {state.refusal}")
        return state

    def _run(self, job: Job, place: Place, uid: str) -> _Live:
        container = place.containers["c"]
        share = container.gpus[0]
        model = MACHINE[share.node].model
        link = None if share.node == place.node else link_between(place.node, share.node)
        running = Running(job.number, job.app, container.limited_by, model, link=link)
        if share.mig is not None:
            node = self._engine.book.nodes[share.node]
            geometry = geometry_of(node.by_uuid[share.uuid].model, node.by_uuid[share.uuid].total_mib) or 0
            profile = profile_in(geometry, share.mig.profile)
            if profile is not None:
                running.share = profile.compute_slices / GEOMETRIES[geometry].compute_slices
                running.bandwidth = profile.memory_slices / GEOMETRIES[geometry].memory_slices
        elif 0 < share.compute_milli < 1000 and container.limited_by != "time_slice":  # the driver limits no time
            running.share = share.compute_milli / 1000
        alone = self._truth.rate(Running(job.number, job.app, "exclusive", model), [])
        live = _Live(job, running, share.uuid, uid, self._now, job.work_s, alone, since_s=self._now)
        self._live[job.number] = live
        self._on[share.uuid].add(job.number)
        self._rates(share.uuid)
        return live

    def _leave(self, number: int) -> _Live:
        live = self._live.pop(number)
        self._on[live.gpu].discard(number)
        self._engine.book.unhold(live.uid)
        del self._engine.book.pods[live.uid]
        self._engine.forget(live.uid)
        self._rates(live.gpu)
        return live


def _limits(app: App, request: str) -> Quantities:
    if request == "whole":
        return {names.RESOURCE_GPU: 1}
    memory: Quantities = {names.RESOURCE_GPU_MEMORY: f"{app.memory_mib}Mi"}
    if request == "half":
        return {**memory, names.RESOURCE_GPU_COMPUTE: 50}
    if request == "memory":
        return memory
    return memory | {names.RESOURCE_GPU_COMPUTE: math.ceil(10 * app.busy) * 10}
