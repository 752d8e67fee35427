"""How the resize of each pod stands: what `kerf why` says of it, and its Events."""

from __future__ import annotations

from services.placement import messages as m
from services.placement.pod_events import pod_event
from shared.book.states import PodState
from shared.contracts.explain import ResizeExplanation
from shared.model import names
from shared.model.autoscale import AutoscaleError, read_autoscale
from shared.model.grant import Grant
from shared.model.resize import MAX_TEXT
from shared.model.units import format_mib


class ResizeStatus:
    def __init__(self) -> None:
        self._status: dict[str, ResizeExplanation] = {}
        """By uid."""
        self._said: dict[str, str] = {}
        """The last Event of each pod, so that it is not repeated."""
        self._autoscales: dict[str, str] = {}
        """By uid: the text of `kerf.dev/autoscale` that was looked at last."""

    def explain(self, uid: str) -> ResizeExplanation | None:
        """How the resize of a pod stands; None if none was asked for."""
        return self._status.get(uid)

    def forget(self, uid: str) -> None:
        """Nothing is to be resized any more."""
        self._status.pop(uid, None)

    def ended(self, uid: str) -> None:
        for known in (self._status, self._said, self._autoscales):
            known.pop(uid, None)

    def note(self, state: PodState, phase: str, sentence: str, code: str = "") -> None:
        wanted = text_of(state)[:MAX_TEXT]
        self._status[state.uid] = ResizeExplanation(wanted=wanted, phase=phase, sentence=sentence, code=code)

    def done(self, state: PodState, sentence: str) -> None:
        """The next Event of the pod is told, whatever the last one was."""
        self._said.pop(state.uid, None)
        self.note(state, "done", sentence)

    def say(self, state: PodState, phase: str, why: str, *, code: str = "") -> list[m.Command]:
        """What the pod waits for, or why it waits in vain; an Event when that is another reason than before."""
        self.note(state, phase, why, code)
        told = f"{text_of(state)[:MAX_TEXT]} {phase} {code or _without_figures(why)}"
        if self._said.get(state.uid) == told:
            return []
        self._said[state.uid] = told
        reason = "ResizeRefused" if phase == "refused" else "ResizePending"
        note = why if phase == "refused" else f"the slices stay as they are, and are resized when that is over: {why}"
        return [m.SendPatches((pod_event(state, reason, "Resizing", note),))]

    def bad_autoscale(self, state: PodState) -> list[m.Command]:
        """Says once of each text that nothing follows from it: no pod learns that from the autoscaler."""
        text = state.pod.metadata.annotations.get(names.ANNOTATION_AUTOSCALE, "")
        if not text or not state.ours or state.ended or self._autoscales.get(state.uid) == text[: MAX_TEXT + 1]:
            return []
        self._autoscales[state.uid] = text[: MAX_TEXT + 1]
        try:
            read_autoscale(text)
        except AutoscaleError as error:
            return [m.SendPatches((pod_event(state, "AutoscaleRefused", "Resizing", f"{error}"),))]
        return []


def text_of(state: PodState) -> str:
    """What a pod wants, as it is annotated."""
    return state.pod.metadata.annotations.get(names.ANNOTATION_RESIZE, "")


def words(grant: Grant) -> str:
    """A grant's amounts, for people."""
    parts = []
    for name, part in sorted(grant.containers.items()):
        mib, milli = sum(share.memory_mib for share in part.gpus), sum(share.compute_milli for share in part.gpus)
        compute = f" and {milli / 10:g} % compute" if milli else ""
        parts.append(f"{format_mib(mib)}{compute} ({name})")
    return ", ".join(parts)


def _without_figures(why: str) -> str:
    """A reason whose figures alone are others is told once."""
    return "".join(char for char in why if not char.isdigit())
