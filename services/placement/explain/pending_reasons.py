"""What users are told of decisions, refusals and reasons; each once, not at each attempt."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping

import msgspec

from services.placement import messages as m
from services.placement.explain.explainer import Explainer
from services.placement.pod_events import pod_event, warn
from services.placement.scheduling.queue import Queue
from shared.book.book import Book
from shared.book.gangs import GangState, gang_trace
from shared.book.states import PodState
from shared.contracts.commands import Answer, Patch, ReportPending, SelectNode
from shared.contracts.events import GangPlaced, GangWaiting, PlacementDecided, PlacementRejected
from shared.contracts.explain import PodExplanation, Reason
from shared.scheduling.filters.volumes import choose_volumes, claim_names, waits_for_consumer

_MATES_MOST = 63
"""How many members of a gang are reported together: their messages are sent as one."""
_AGAIN_AFTER_S = 30.0
_OUTDATED_MOST = 8
"""A pod whose reason changes all the time is explained no more often than this."""
SAY_AGAIN_S = 10.0
_REPORTS_MOST = 200


class Reports:
    def __init__(self) -> None:
        self._said: dict[str, tuple[str, float]] = {}
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._decided: dict[str, PlacementDecided] = {}
        self._gangs_decided: dict[str, GangPlaced] = {}
        self._gangs_said: dict[str, str] = {}
        self._asked: dict[str, tuple[tuple[SelectNode, ...], float]] = {}
        self._look_at = 0.0

    def forget(self, uid: str) -> None:
        self._said.pop(uid, None)
        self._waiting.pop(uid, None)
        self._decided.pop(uid, None)
        self._asked.pop(uid, None)

    def forget_gang(self, key: str) -> None:
        self._gangs_said.pop(key, None)

    def decided(self, uid: str, event: PlacementDecided) -> None:
        """Kept until the log has the decision: until then it may be lost."""
        self._waiting.pop(uid, None)
        self._decided[uid] = event

    def take_decided(self, uid: str, sequence: int) -> PlacementDecided | None:
        event = self._decided.pop(uid, None)
        return None if event is None else msgspec.structs.replace(event, sequence=sequence)

    def gang_decided(self, uid: str, event: GangPlaced) -> None:
        """Kept until the log has the record with this member, and with it all others."""
        self._gangs_said.pop(f"{event.namespace}/{event.name}", None)
        self._gangs_decided[uid] = event

    def take_gangs(self, uids: Iterable[str], sequence: int) -> list[GangPlaced]:
        if not self._gangs_decided:
            return []
        return [
            msgspec.structs.replace(event, sequence=sequence)
            for uid in uids
            if (event := self._gangs_decided.pop(uid, None)) is not None
        ]

    def gang_lacks(self, gang: GangState, placed: Iterable[PodState]) -> list[m.Command]:
        """A gang has begun and has lacked members for longer than its time-out: its placed members get an Event."""
        note = (
            f"gang {gang.name} has {gang.has} of the {gang.minimum} pods it needs, for {gang.patience_s} s now; "
            "what was not bound has been given back. Delete the pods that run to free their GPUs, or let them wait"
        )
        return [
            m.SendPatches(
                tuple(
                    pod_event(state, "GangIncomplete", "Scheduling", note)
                    for state in placed
                    if state.pod.spec.node_name
                )
            )
        ]

    def _gang_waits(self, namespace: str, explanation: PodExplanation) -> list[m.Command]:
        """Once for all members, and again when the reason changes."""
        gang = explanation.gang
        if gang is None or self._gangs_said.get(key := f"{namespace}/{gang.name}") == explanation.sentence:
            return []
        self._gangs_said[key] = explanation.sentence
        event = GangWaiting(namespace=namespace, name=gang.name, sentence=explanation.sentence, gang=gang)
        return [m.Publish(event, namespace=namespace, uid=gang_trace(namespace, gang.name))]

    def needs_report(self, uid: str) -> None:
        """The pod does not fit; its reason is worked out when there is nothing better to do."""
        self._waiting[uid] = None

    def refused(self, state: PodState, why: Reason) -> list[m.Command]:
        meta = state.pod.metadata
        sentence = f"{why.sentence}; {why.helps}" if why.helps else why.sentence
        if self._said.get(state.uid, ("", 0.0))[0] == sentence:
            return []
        self._said[state.uid] = (sentence, 0.0)
        explanation = PodExplanation(
            namespace=meta.namespace,
            name=meta.name,
            uid=state.uid,
            state="refused",
            sentence=sentence,
            summary=(why,),
            helps=(why.helps,) if why.helps else (),
        )
        return self._reject(state, explanation)

    def bind_refused(self, state: PodState, answer: Answer) -> list[m.Command]:
        note = f"the Binding was refused ({answer.outcome}): {answer.message}; the pod is scheduled again"
        return [warn(state, "BindingRefused", "Binding", note)]

    def claims_first(self, state: PodState, node: str, book: Book) -> tuple[SelectNode, ...]:
        """Claims of the pod that bind late and need the node before the pod can be bound."""
        if not state.pod.spec.volumes:
            return ()
        namespace = state.pod.metadata.namespace
        claims = book.others.get("PersistentVolumeClaim", {})
        late = [
            c
            for n in claim_names(state.pod)
            if (c := claims.get(f"{namespace}/{n}")) is not None and waits_for_consumer(c, book)
        ]
        chosen = choose_volumes(late, book.nodes[node], book)
        return tuple(
            SelectNode(namespace=namespace, claim=name, node=node, volume=volume) for name, volume in chosen.items()
        )

    def ask_claims(self, uid: str, claims: tuple[SelectNode, ...], now: float) -> list[m.Command]:
        """Sends what `claims_first` found, the same no more often than every SAY_AGAIN_S."""
        said = self._asked.get(uid)
        if said is not None and said[0] == claims and now - said[1] < SAY_AGAIN_S:
            return []
        self._asked[uid] = (claims, now)
        return [m.SendPatches(claims)]

    def needs_reports(self, uids: Iterable[str]) -> None:
        """Pods behind a pod that does not fit are reported too, each once."""
        for uid in uids:
            if uid not in self._said:
                self._waiting[uid] = None

    def outdated(self, changed_at: float, now: float) -> list[str]:
        """Pods whose reason was reported before something changed, and not just now; the oldest reports first, a few at
        a time."""
        found = [
            (at, uid)
            for uid, (_, at) in self._said.items()
            if at < changed_at and now - at >= _AGAIN_AFTER_S and uid not in self._waiting
        ]
        return [uid for _, uid in sorted(found)[:_OUTDATED_MOST]]

    def say_again(self, book: Book, held: Container[str], now: float) -> list[m.Command]:
        """Reports that have not arrived on their pods, and nodes on their claims: a watcher that ends takes what it has
        not written with it."""
        if now < self._look_at:
            return []
        self._look_at = now + SAY_AGAIN_S
        lost: list[Patch] = []
        for uid, (sentence, at) in self._said.items():
            state = book.pods.get(uid)
            if state is None or uid in held or now - at < SAY_AGAIN_S or not state.wants_place or _told(state):
                continue
            lost.append(_report(state, sentence))
        for uid, (claims, at) in self._asked.items():
            unbound = tuple(c for c in claims if _unbound(c, book))
            if uid in book.pods and book.pods[uid].wants_place and unbound and now - at >= SAY_AGAIN_S:
                lost += unbound
                self._asked[uid] = (claims, now)
        return [m.SendPatches(tuple(lost[:_REPORTS_MOST]))] if lost else []

    def explain_one(
        self, explainer: Explainer, queue: Queue, book: Book, first_seen: Mapping[str, float], now: float
    ) -> list[m.Command]:
        """Explains one pod that waits for a report. One at a time: it takes milliseconds on a large cluster. All
        members of a gang get the same explanation."""
        while self._waiting:
            uid, _ = self._waiting.popitem(last=False)
            gang = explainer.gangs.of(uid)
            out: list[m.Command] = []
            for one in (
                (uid,)
                if gang is None
                else (uid, *[mate for mate in gang.waiting if mate in self._waiting][:_MATES_MOST])
            ):
                self._waiting.pop(one, None)
                state = book.pods.get(one)
                if state is not None and one in queue:
                    out += self._explain(state, explainer, now, waiting_s=now - first_seen.get(one, now))
            if out:
                return out
        return []

    def _explain(self, state: PodState, explainer: Explainer, now: float, *, waiting_s: float) -> list[m.Command]:
        """Nothing if it was reported lately, or has not changed."""
        said = self._said.get(state.uid)
        if said is not None and now - said[1] < _AGAIN_AFTER_S:
            return []
        explanation = explainer.why(state, max_nodes=5, waiting_s=waiting_s, ahead=0)
        self._said[state.uid] = (explanation.sentence, now)
        return [] if said is not None and said[0] == explanation.sentence else self._reject(state, explanation)

    def _reject(self, state: PodState, explanation: PodExplanation) -> list[m.Command]:
        meta = state.pod.metadata
        event = PlacementRejected(uid=state.uid, namespace=meta.namespace, name=meta.name, explanation=explanation)
        return [
            *self._gang_waits(meta.namespace, explanation),
            m.Publish(event, namespace=meta.namespace, uid=state.uid),
            m.SendPatches((_report(state, explanation.sentence),)),
        ]


def _report(state: PodState, sentence: str) -> ReportPending:
    meta = state.pod.metadata
    return ReportPending(
        uid=state.uid,
        namespace=meta.namespace,
        name=meta.name,
        reason="Unschedulable",
        message=sentence,
        resource_version=meta.resource_version,
    )


def _unbound(order: SelectNode, book: Book) -> bool:
    claim = book.others.get("PersistentVolumeClaim", {}).get(f"{order.namespace}/{order.claim}")
    return claim is not None and not claim.spec.volume_name


def _told(state: PodState) -> bool:
    return any(c.type == "PodScheduled" and c.status == "False" for c in state.pod.status.conditions)
