"""Why a pod is where it is, or nowhere: per node, per GPU, and what would help. Reads the book, changes nothing."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
from msgspec.structs import replace

from services.placement.engine.choice import sentence
from services.placement.engine.engine import Engine
from services.placement.engine.remote import RemotePlaces
from services.placement.explain.counterfactuals import advice, changes_of_pod
from services.placement.explain.diagnosis import Verdicts, judge_all
from services.placement.explain.instance_or_share import other_kind
from services.placement.explain.migrations import move_of_another
from services.placement.explain.runner_up import runner_up
from services.placement.explain.steps import Steps, finish
from services.placement.free_capacity import fits_room
from services.placement.policies.base import largest_ask
from services.placement.scheduling.backfill.reservations import Backfill, HeadReservation
from services.placement.scheduling.fair.fair import Fair
from services.placement.scheduling.fair.messages import owed_first
from services.placement.scheduling.gangs.messages import gang_composite, gang_unknown, verdict
from services.placement.scheduling.late_claims import LateClaims
from services.placement.scheduling.queue import Queue
from services.placement.scheduling.quota import over_quota
from services.placement.scheduling.trial import Trial
from services.placement.scheduling.unsupported_fields import refusal
from services.placement.scores import scores
from services.placement.scores.base import ClusterScore, NodeScore
from shared.book.book import Book
from shared.book.gangs import Gangs, GangState, Verdict
from shared.book.shares import GpuRoom, fits, missing
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Candidate, GpuReason, NodeExplanation, PodExplanation, Reason
from shared.model.units import format_mib

_NOT_SELECTED = frozenset({"node-selector", "node-affinity"})
_NAMED_MOST = 4
"""So many nodes with reserved capacity are named."""


class Explainer:
    def __init__(  # noqa: PLR0917 - all that decides
        self,
        book: Book,
        engine: Engine,
        gangs: Gangs,
        fair: Fair,
        queue: Queue,
        remote: RemotePlaces | None = None,
        *,
        backfill: Backfill | None = None,
        late_claims: LateClaims | None = None,
    ) -> None:
        """`backfill`: what is reserved for the head of the queue; `late_claims`: for pods while their volumes are made.
        None: nothing."""
        self.book, self.engine, self.gangs, self.fair, self.queue = book, engine, gangs, fair, queue
        self._remote, self._backfill = remote or RemotePlaces(engine), backfill
        self._late_claims = late_claims

    @classmethod
    def of(cls, book: Book, engine: Engine) -> Explainer:
        """One for a book by itself, such as a trial's: no pod waits beside those that are asked about."""
        return cls(book, engine, Gangs(book), Fair(book), Queue())

    def why(
        self, state: PodState, *, max_nodes: int, waiting_s: float = 0.0, ahead: int = 0, exists: bool = True
    ) -> PodExplanation:
        """The explanation of one pod, computed at once on the present book."""
        return finish(self.explain(state, max_nodes=max_nodes, waiting_s=waiting_s, ahead=ahead, exists=exists))

    def explain(
        self,
        state: PodState,
        *,
        max_nodes: int,
        waiting_s: float = 0.0,
        ahead: int = 0,
        exists: bool = True,
        now: float | None = None,
    ) -> Steps[PodExplanation]:
        """The whole story of one pod. With `now` (seconds since 1970) moves of other pods are looked for too."""
        meta = state.pod.metadata
        base = PodExplanation(
            namespace=meta.namespace,
            name=meta.name,
            uid=state.uid,
            state="unknown",
            sentence="",
            waiting_s=waiting_s,
            ahead=ahead,
        )
        why_never = refusal(state)
        if why_never is not None:
            return replace(
                base, state="refused", sentence=why_never.sentence, summary=(why_never,), helps=(why_never.helps,)
            )
        if state.pod.spec.scheduling_gates:
            gates = ", ".join(g.name for g in state.pod.spec.scheduling_gates)
            return replace(
                base,
                state="gated",
                sentence=f"the pod waits for its scheduling gates: {gates}",
                helps=(f"remove the gates {gates}",),
            )
        if exists and (state.charged or state.pod.spec.node_name):
            return self._placed(state, base, max_nodes)
        node = "" if self._late_claims is None or not exists else self._late_claims.node_of(state.uid)
        if node:
            sentence = f"a place on {node} is kept for the pod while its volumes are made there"
            helps = ("kubectl describe its PersistentVolumeClaims: the Events are of what makes the volumes",)
            return replace(base, state="waiting", sentence=sentence, node=node, helps=helps)
        base = replace(base, queue=self.fair.explain(state, self.queue.waiting_by_queue()))
        kept = self._kept_back(state)
        if kept is not None:
            return _waits_for_queue(base, kept, exists=exists)
        if exists and state.gang is not None:
            return self._in_gang(state, base, max_nodes)
        over = None if exists else over_quota(state.pod, self.book.others.get("ResourceQuota", {}).values())
        if over is not None:
            return replace(base, state="refused", sentence=over.sentence, summary=(over,), helps=(over.helps,))
        said = yield from self._unplaced(state, base, max_nodes, exists=exists, now=now)
        turn = owed_first(base.queue)
        return replace(said, sentence=f"{said.sentence}; {turn}") if turn else said

    def _kept_back(self, state: PodState) -> Reason | None:
        """The queue's reason. For a gang below its minimum the queue is not the reason."""
        gang = self.gangs.of(state.uid)
        if gang is None:
            return self.fair.quota_exceeded((state,))
        if not gang.gathered:
            return None
        return self.fair.quota_exceeded([self.book.pods[uid] for uid in gang.waiting], gang.need) or gang.quota_reason

    def _in_gang(self, state: PodState, base: PodExplanation, max_nodes: int) -> PodExplanation:
        unknown, gang = self.gangs.unknown_source(state), self.gangs.of(state.uid)
        if unknown:
            composite = self.gangs.composite(state)
            why = gang_composite(unknown, composite) if composite else gang_unknown(unknown)
            return replace(base, state="waiting", sentence=why.sentence, summary=(why,), helps=(why.helps,))
        if gang is None:
            return finish(self._unplaced(state, base, max_nodes))
        if gang.verdict is None:
            gang.verdict = self._verdict(gang, state, base, max_nodes)
        said = gang.verdict
        return replace(
            base,
            state="waiting",
            sentence=said.sentence,
            summary=said.summary,
            helps=said.helps,
            nodes=said.nodes,
            gang=said.gang,
        )

    def _verdict(self, gang: GangState, state: PodState, base: PodExplanation, max_nodes: int) -> Verdict:
        """Beside what is reserved for the head of the queue, where that keeps the gang off."""
        members = [self.book.pods[uid] for uid in gang.waiting]

        def found() -> Verdict:
            return verdict(gang, members, self.engine, lambda pod: finish(self._unplaced(pod, base, max_nodes)))

        against = [] if self._backfill is None else self._backfill.against(state.uid)
        if self._backfill is None or not against:
            return found()
        with self._backfill.shown_to(state.uid):
            beside = found()
        why = capacity_reserved(against[0], ", ".join(against[0].nodes[:_NAMED_MOST]))
        return replace(
            beside,
            sentence=f"{beside.sentence}; {why.sentence}",
            summary=(*beside.summary, why),
            helps=(*beside.helps, why.helps),
        )

    def _placed(self, state: PodState, base: PodExplanation, max_nodes: int) -> PodExplanation:
        node = state.charged or state.pod.spec.node_name
        held = self.book.grants.get(state.grant_id)
        phase: str = held.phase if held is not None else ("bound" if state.pod.spec.node_name else "holding")
        if state.ended:
            phase = "leaving" if held is not None else "ended"
        words = {
            "holding": "is decided for",
            "bound": "is bound to",
            "leaving": "has ended and still holds its GPUs on",
            "ended": "has ended on",
        }
        sentence = f"the pod {words[phase]} {node}"
        if held is not None:
            shares = [
                f"{format_mib(s.memory_mib)} and {s.compute_milli / 10:g} % of {s.uuid}"
                for c in held.grant.containers.values()
                for s in c.gpus
            ]
            sentence += f" with {'; '.join(shares)}"
            if held.client:
                sentence += f", a GPU of {held.node}, over the network"
        if not state.charged or state.ended or (held is not None and held.client):
            return replace(base, state=phase, sentence=sentence, node=node)
        again = Trial(self.engine)
        waits = again.book.lift(state.uid)
        candidates = Explainer.of(again.book, again.engine)._candidates(waits, max(2, max_nodes))
        here = other_kind(waits, again.book.nodes[node], again.engine) if node in again.book.nodes else ""
        return replace(
            base,
            state=phase,
            sentence=sentence,
            node=node,
            candidates=candidates[:max_nodes],
            second="; ".join(part for part in (runner_up(node, candidates), here, _choice(waits, again, node)) if part),
        )

    def _unplaced(
        self, state: PodState, base: PodExplanation, max_nodes: int, *, exists: bool = True, now: float | None = None
    ) -> Steps[PodExplanation]:
        verdicts = yield from judge_all(state, self.book)
        if exists and self._backfill is not None:
            fitting = [name for name, reasons in verdicts.items() if not reasons]
            closed = self._backfill.closed(state.uid, fitting)
            verdicts |= {name: (capacity_reserved(head, name),) for name, head in closed.items()}
            now = None if closed else now  # moves would take what is reserved
        feasible = [name for name, reasons in verdicts.items() if not reasons]
        kept = self.fair.keeps_off_all(state, feasible)
        if kept is not None:
            return _waits_for_queue(base, kept, exists=exists)
        if feasible:
            waits = "waiting" if exists else "would-fit"
            sentence = f"{len(feasible)} of {len(verdicts)} nodes can take the pod" + (
                ", it is about to be placed" if exists else ""
            )
            return replace(base, state=waits, sentence=sentence, candidates=self._candidates(state, max_nodes))
        elsewhere = self._remote.decide(state) if state.request is not None and state.request.remote else None
        if elsewhere is not None:
            (share, *_) = next(iter(elsewhere.containers.values())).gpus
            sentence = f"the pod fits on {elsewhere.node} with a GPU of {share.node}, over the network"
            return replace(base, state="waiting" if exists else "would-fit", sentence=sentence)
        changes = yield from changes_of_pod(state, verdicts, self.book)
        move = None if now is None else (yield from move_of_another(state, verdicts, self.engine, now))
        helps = (
            tuple(f"{c.sentence} ({c.node})" for c in changes)
            + (() if move is None else (move.sentence,))
            + advice(verdicts, self.book)
        )
        summary, far = _summary(verdicts), self._remote.why_not(state)
        nearest = _nearest(verdicts, self.book)[:max_nodes]
        nodes = tuple(self._node(state, self.book.nodes[name], verdicts[name]) for name in nearest)
        counted = "; ".join(f"{r.nodes} {_plural('node', r.nodes)}: {r.sentence}" for r in summary[:4])
        sentence = f"0 of {len(verdicts)} nodes can take the pod: {counted}" if verdicts else "there are no nodes yet"
        if far is not None:
            summary, helps = (*summary, far), (*helps, far.helps)
            sentence += f". {far.sentence[0].upper()}{far.sentence[1:]}"
        if helps:
            sentence += f". What would help: {helps[0]}"
        return replace(
            base,
            state="waiting" if exists else "would-wait",
            sentence=sentence,
            summary=summary,
            helps=helps,
            nodes=nodes,
            counterfactuals=(*changes, *(() if move is None else (move,))),
        )

    def _node(self, state: PodState, node: NodeState, reasons: tuple[Reason, ...]) -> NodeExplanation:
        gpus: tuple[GpuReason, ...] = ()
        ask = largest_ask(state)
        if ask is not None:
            gpus = tuple(
                GpuReason(
                    uuid=room.uuid,
                    index=room.index,
                    model=room.model,
                    fits=fits(ask, room),
                    missing=missing(ask, room),
                    free_memory_mib=max(0, room.free_mib),
                    free_compute_milli=max(0, room.free_milli),
                    holders=self._holders(node, room),
                    kept_for=self._holders(node, room, kept=True),
                )
                for room in node.gpus
            )
        return NodeExplanation(node=node.name, feasible=not reasons, reasons=reasons, gpus=gpus)

    def _holders(self, node: NodeState, room: GpuRoom, *, kept: bool = False) -> tuple[str, ...]:
        """`kept`: the uid of the pod for which a plan reserves a place there."""
        sizes: Counter[str] = Counter()
        for held in [held for held in node.grants.values() if (held.phase == "reserved") == kept]:
            for container in held.grant.containers.values():
                for share in container.gpus:
                    if share.uuid == room.uuid:
                        sizes[f"{held.namespace}/{held.name}"] += share.memory_mib
        return tuple(name for name, _ in sizes.most_common(5))

    def _candidates(self, state: PodState, limit: int) -> tuple[Candidate, ...]:
        """The best nodes now, as a decision would rank them, with each score's part."""
        found, totals = [], self.engine.row(state).refresh()
        for node in islice(self.engine.nodes_for(state), max(0, limit)):
            points = self._scores(state, node.row)
            beside = sum(points.get(score.name, 0) for score in scores().cluster)
            total = int(totals[node.row]) + beside
            terms = self.engine.policy_of(state).words(state, node.row)
            found.append(Candidate(node=node.name, total=total, scores=points, terms=terms))
        return tuple(found)

    def _scores(self, state: PodState, row: int) -> dict[str, int]:
        node = self.book.nodes[self.book.row_names[row]]
        rows = np.array([row], np.int64)
        _, fit = fits_room(state, self.book.arrays, rows)
        points = {}
        for column in scores().columns:
            part = column.rate(state, self.engine.policy_of(state), self.book.arrays, rows, fit)
            if part is not None:
                points[column.name] = int(part[0]) * column.weight
        singly: tuple[NodeScore | ClusterScore, ...] = (*scores().node, *scores().cluster)
        for score in singly:
            rate = score.prepare(state, self.book)
            if rate is not None:
                points[score.name] = rate(node) * score.weight
        return points


def capacity_reserved(kept: HeadReservation, where: str) -> Reason:
    """Why a pod is kept off capacity that is free, or will be. `where`: names of nodes."""
    return Reason(
        code="capacity-reserved",
        sentence=f"capacity on {where} is reserved for {kept.name}, which comes before it",
        helps=f"wait until {kept.name} has started, or give the pod a higher priority, or an activeDeadlineSeconds by "
        "which it ends before that can start",
    )


def _waits_for_queue(base: PodExplanation, why: Reason, *, exists: bool) -> PodExplanation:
    sentence = f"{why.sentence}. What would help: {why.helps}"
    return replace(
        base, state="waiting" if exists else "would-wait", sentence=sentence, summary=(why,), helps=(why.helps,)
    )


def _summary(verdicts: Verdicts) -> tuple[Reason, ...]:
    """By code, most frequent first, each with the sentence of its first node where all agree, else a general one."""
    by_code: dict[str, list[Reason]] = {}
    for reasons in verdicts.values():
        for reason in reasons:
            by_code.setdefault(reason.code, []).append(reason)
    ordered = sorted(by_code.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(
        Reason(
            code=code,
            sentence=Counter(r.sentence for r in reasons).most_common(1)[0][0],
            helps=Counter(r.helps for r in reasons).most_common(1)[0][0],
            nodes=len(reasons),
            lacking=min(r.lacking for r in reasons),
        )
        for code, reasons in ordered
    )


def _choice(state: PodState, again: Trial, node: str) -> str:
    """How its strategies would be chosen on its node again, as far as sharing is weighed for it."""
    request = state.request
    if request is not None and request.max_slowdown_milli and not request.asks.keys() <= state.uses.keys():
        return "no bound can be kept: nothing is known of its owner's use"
    place = again.engine.decide(state, again.engine.only(node)) if state.adaptive and node in again.book.nodes else None
    return "" if place is None else "; ".join(sentence(one) for one in place.choice)


def _nearest(verdicts: Verdicts, book: Book) -> list[str]:
    """The nodes that come nearest to fitting first. Nodes that the pod itself excludes are left out, unless it excludes
    all."""
    names = [name for name in verdicts if name in book.nodes]
    selected = [name for name in names if not any(reason.code in _NOT_SELECTED for reason in verdicts[name])]

    def order(name: str) -> tuple[int, int, str]:
        reasons = verdicts[name]
        return len(reasons), max((reason.lacking for reason in reasons), default=0), name

    return sorted(selected or names, key=order)


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
