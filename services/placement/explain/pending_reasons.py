"""Reports why pods wait, each reason once and not at each attempt: public events, and conditions on the pods."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from services.placement import messages as m
from services.placement.explain.explainer import Explainer
from services.placement.scheduling.queue import Queue
from services.placement.scheduling.unplaced import Unplaced
from shared.book.book import Book
from shared.book.gangs import Gangs, gang_trace
from shared.book.states import PodState
from shared.contracts.commands import ReportPending
from shared.contracts.events import GangWaiting, PlacementRejected
from shared.contracts.explain import PodExplanation, Reason
from shared.printable import shortened

_MATES_MOST = 63
"""How many members of a gang are reported together: their messages are sent as one."""
_AGAIN_AFTER_S = 30.0
_OUTDATED_MOST = 8
"""A pod whose reason changes all the time is explained no more often than this."""
SAY_AGAIN_S = 10.0
_REPORTS_MOST = 200
_GATHERING_S = 2.0
"""Controllers create the pods of a gang one after another; the first ones need not be reported as waiting for the
last."""
_EXPLAIN_AT_ONCE_NODES = 100
_EXPLAIN_PAUSE_S_A_NODE = 1e-4
"""Explaining looks at every node, 15 us each. On a large cluster the leader spends about a seventh of its time on
it."""
_EXPLAIN_PART = 6
"""Nothing is explained for this many times as long as the last explanation took: on a machine with little time to spare
decisions come first. The process may have been stopped meanwhile, so not for longer than `_EXPLAIN_PAUSE_MOST_S`."""
_EXPLAIN_PAUSE_MOST_S = 60.0


REFUSED = "Refused"


class Said(NamedTuple):
    sentence: str
    reason: str
    """Of the pod's condition."""
    at: float


class PendingReasons:
    """Reads what the scheduler has noted (`Unplaced`); decides nothing."""

    def __init__(
        self,
        book: Book,
        explainer: Explainer,
        *,
        queue: Queue,
        gangs: Gangs,
        unplaced: Unplaced,
        first_seen: Mapping[str, float],
        stopwatch: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`first_seen`: when each waiting pod was, by uid. `stopwatch` returns seconds."""
        self._book, self._explainer, self._queue, self._gangs = book, explainer, queue, gangs
        self._unplaced, self._first_seen, self._stopwatch = unplaced, first_seen, stopwatch
        self.said: dict[str, Said] = {}
        """By uid: what was reported last."""
        self.gangs_said: dict[str, str] = {}
        """By the namespace/name of a gang: the sentence that was reported last."""
        self._repeat_at = self._remind_at = self._changed_at = self._explain_at = 0.0

    def refusals(self) -> list[m.Command]:
        """Reports pods that will not be tried as they are."""
        if not self._unplaced.refused:
            return []
        refused, self._unplaced.refused = self._unplaced.refused, {}
        self._forget()
        return [command for uid, why in refused.items() for command in self._refused(self._book.pods[uid], why)]

    def explain_one(self, now: float) -> list[m.Command]:
        """When there is nothing better to do: explains one pod that waits for a report, and all members of its gang.
        One at a time: it takes milliseconds on a large cluster."""
        if now < self._explain_at:
            return []
        self._forget()
        unplaced, began = self._unplaced, self._stopwatch()
        while (uid := unplaced.next_unexplained()) is not None:
            gang = self._gangs.of(uid)
            mates = [] if gang is None else [one for one in gang.waiting if unplaced.is_unexplained(one)][:_MATES_MOST]
            out: list[m.Command] = []
            for one in (uid, *mates):
                unplaced.placed(one)
                state = self._book.pods.get(one)
                if state is not None and one in self._queue:
                    out += self._explain(state, now)
            if out:
                more, took_s = len(self._book.nodes) - _EXPLAIN_AT_ONCE_NODES, self._stopwatch() - began
                pause_s = max(_EXPLAIN_PAUSE_S_A_NODE * more, _EXPLAIN_PART * took_s, 0.0)
                self._explain_at = now + min(took_s + pause_s, _EXPLAIN_PAUSE_MOST_S)
                return out
        return []

    def repeat(self, held: Container[str], now: float) -> list[m.Command]:
        """Sends reports again that have not arrived on their pods: a watcher that ends takes what it has not written
        with it."""
        if now < self._repeat_at:
            return []
        self._repeat_at = now + SAY_AGAIN_S
        self._forget()
        lost: list[ReportPending] = []
        for uid, said in self.said.items():
            state = self._book.pods.get(uid)
            if (
                state is None
                or uid in held
                or now - said.at < SAY_AGAIN_S
                or not state.wants_place
                or _told(state, said)
            ):
                continue
            lost.append(_report(state, said.sentence, said.reason))
        return [m.SendPatches(tuple(lost[:_REPORTS_MOST]))] if lost else []

    def remind(self, now: float) -> None:
        """Has pods explained although nothing has just been tried: gangs that gather for long, and pods whose reason
        may have changed although nothing that would admit them has."""
        if now < self._remind_at:
            return
        self._remind_at = now + _GATHERING_S
        if self._unplaced.changed:
            self._unplaced.changed, self._changed_at = False, now
        for uid in self._outdated(now):
            gang = self._gangs.of(uid)
            if gang is not None:
                gang.verdict = None
            for member in (uid,) if gang is None else gang.waiting:
                self._unplaced.note(member)
        for gang in self._gangs.by_key.values():
            first = next(iter(gang.waiting), None)
            if (
                first is not None
                and not gang.gathered
                and gang.verdict is None
                and now - self._first_seen.get(first, now) >= _GATHERING_S
            ):
                for uid in gang.waiting:
                    self._unplaced.note(uid)

    def _outdated(self, now: float) -> list[str]:
        """Pods whose reason was reported before something changed, and not just now; the oldest reports first, a few at
        a time."""
        self._forget()
        found = [
            (said.at, uid)
            for uid, said in self.said.items()
            if said.at < self._changed_at and now - said.at >= _AGAIN_AFTER_S and not self._unplaced.is_unexplained(uid)
        ]
        return [uid for _, uid in sorted(found)[:_OUTDATED_MOST]]

    def _forget(self) -> None:
        """Drops what is known of pods and gangs that the scheduler has forgotten."""
        if len(self.said) > len(self._unplaced.explained):
            for uid in self.said.keys() - self._unplaced.explained:
                del self.said[uid]
        for key in self._unplaced.gone_gangs:
            self.gangs_said.pop(key, None)
        self._unplaced.gone_gangs.clear()

    def _remember(self, uid: str, sentence: str, reason: str, now: float) -> None:
        self.said[uid] = Said(sentence, reason, now)
        self._unplaced.explained.add(uid)

    def _refused(self, state: PodState, why: Reason) -> list[m.Command]:
        meta = state.pod.metadata
        sentence = f"{why.sentence}; {why.helps}" if why.helps else why.sentence
        said = self.said.get(state.uid)
        if said is not None and said.sentence == sentence:
            return []
        self._remember(state.uid, sentence, REFUSED, 0.0)
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

    def _explain(self, state: PodState, now: float) -> list[m.Command]:
        """Nothing if it was reported lately, or has not changed."""
        said = self.said.get(state.uid)
        if said is not None and now - said.at < _AGAIN_AFTER_S:
            return []
        waiting_s = now - self._first_seen.get(state.uid, now)
        explanation = self._explainer.why(state, max_nodes=5, waiting_s=waiting_s, ahead=0)
        self._remember(state.uid, explanation.sentence, condition_reason(explanation), now)
        return [] if said is not None and said.sentence == explanation.sentence else self._reject(state, explanation)

    def _reject(self, state: PodState, explanation: PodExplanation) -> list[m.Command]:
        meta = state.pod.metadata
        event = PlacementRejected(uid=state.uid, namespace=meta.namespace, name=meta.name, explanation=explanation)
        return [
            *self._gang_waits(meta.namespace, explanation),
            m.Publish(event, namespace=meta.namespace, uid=state.uid),
            m.SendPatches((_report(state, explanation.sentence, condition_reason(explanation)),)),
        ]

    def _gang_waits(self, namespace: str, explanation: PodExplanation) -> list[m.Command]:
        """Once for all members, and again when the reason changes."""
        gang = explanation.gang
        if gang is None or self.gangs_said.get(key := f"{namespace}/{gang.name}") == explanation.sentence:
            return []
        self.gangs_said[key] = explanation.sentence
        event = GangWaiting(namespace=namespace, name=gang.name, sentence=explanation.sentence, gang=gang)
        return [m.Publish(event, namespace=namespace, uid=gang_trace(namespace, gang.name))]


def condition_reason(explanation: PodExplanation) -> str:
    """The reason of the condition PodScheduled. Autoscalers start nodes for `Unschedulable`, so pods that no node would
    help have another one."""
    codes = {reason.code for reason in explanation.summary}
    if explanation.state == "refused":
        return REFUSED
    if any(code.startswith("queue-") for code in codes):
        return "QuotaExceeded"
    if codes & {"gang-gathering", "gang-unknown", "gang-composite", "gang-too-large", "gang-shares-claim"}:
        return "GangIncomplete"
    return "Unschedulable"


def _report(state: PodState, sentence: str, reason: str) -> ReportPending:
    meta = state.pod.metadata
    return ReportPending(
        uid=state.uid,
        namespace=meta.namespace,
        name=meta.name,
        reason=reason,
        message=shortened(sentence),
        resource_version=meta.resource_version,
    )


def _told(state: PodState, said: Said) -> bool:
    """Whether a report has arrived on the pod, with the reason by which autoscalers act."""
    return any(
        c.type == "PodScheduled" and c.status == "False" and c.reason == said.reason
        for c in state.pod.status.conditions
    )
