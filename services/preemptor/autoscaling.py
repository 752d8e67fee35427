"""Resizes the slices of pods with `kerf.dev/autoscale` by what they use. Placement decides what becomes of it.

It runs here because the preemptor has the pods and the samples of usage. A leader that has just begun has seen no use
yet: amounts grow at once, and become less only after a whole settling time.
"""

from __future__ import annotations

import msgspec

from services.preemptor import messages as m
from shared.book.book import Book
from shared.book.states import PodState
from shared.contracts.commands import ResizePod
from shared.contracts.samples import SliceUse, UsageSample
from shared.model import names
from shared.model.autoscale import Autoscale, AutoscaleError, Bounds, Follower, Use, read_autoscale
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.resize import ResizeError, Wanted, asked_amounts, encode_resize, read_resize, wanted_grant
from shared.model.units import WHOLE_GPU_MILLI

NEEDLESS_S = 60.0
"""For how long an amount that was asked for, and could not be had yet, is not needed before it is taken back."""
AGAIN_S = 30.0
"""How long an amount that was asked for stands before another is asked for."""


class Autoscaler:
    def __init__(self, book: Book) -> None:
        self._book = book
        self._followers: dict[str, Follower] = {}
        self._asked: dict[str, float] = {}
        """By uid, when the last resize was asked for."""
        self._needless: dict[str, float] = {}
        """By uid, since when what was asked for is not needed."""

    def sampled(self, sample: UsageSample, now: float) -> list[m.Command]:
        uses: dict[str, list[SliceUse]] = {}
        for gpu in sample.gpus:
            for use in gpu.slices:
                uses.setdefault(use.uid, []).append(use)
        self._followers = {uid: known for uid, known in self._followers.items() if uid in self._book.pods}
        self._asked = {uid: at for uid, at in self._asked.items() if uid in self._book.pods}
        self._needless = {uid: at for uid, at in self._needless.items() if uid in self._book.pods}
        return [order for uid, of in uses.items() if (order := self._follow(uid, of, now)) is not None]

    def _follow(self, uid: str, uses: list[SliceUse], now: float) -> m.Command | None:
        state = self._book.pods.get(uid)
        text = "" if state is None else state.pod.metadata.annotations.get(names.ANNOTATION_AUTOSCALE, "")
        part = None if state is None or not text else self._part(state)
        if state is None or part is None or len(uses) != len(part.gpus):
            return None
        try:
            scale = read_autoscale(text)
        except AutoscaleError:
            return None
        use = self._use(state, uses, part, now)
        memory_mib, compute_milli = self._followers.setdefault(uid, Follower()).wanted(use, scale)
        meta = state.pod.metadata
        before = meta.annotations.get(names.ANNOTATION_RESIZE, "")
        wanted = _text(scale, memory_mib, compute_milli, use, part, before=before)
        held = self._book.grants[state.grant_id].given
        target = _led_to(held, wanted)
        if target is None or now - self._asked.get(uid, float("-inf")) < AGAIN_S:
            return None
        if target is held:
            # What was asked for and is not there yet is not needed any more, if that lasts.
            if not before or _led_to(held, before) in (None, held):
                self._needless.pop(uid, None)
                return None
            if now - self._needless.setdefault(uid, now) < NEEDLESS_S:
                return None
        self._needless.pop(uid, None)
        if _led_to(held, before) == target:
            return None
        self._asked[uid] = now
        return m.Resize(
            ResizePod(
                namespace=meta.namespace,
                name=meta.name,
                resize=wanted,
                uid=uid,
                resource_version=meta.resource_version,
            )
        )

    def _part(self, state: PodState) -> ContainerGrant | None:
        """The container's part of the grant, of a pod in which one container has GPUs."""
        held = self._book.grants.get(state.grant_id)
        if held is None or held.phase != "bound" or held.suspension is not None or len(held.given.containers) != 1:
            return None
        return next(iter(held.given.containers.values()))

    def _use(self, state: PodState, uses: list[SliceUse], part: ContainerGrant, now: float) -> Use:
        """With what the container requests, and what its GPUs have."""
        request, count = state.request, len(part.gpus)
        ask = None if request is None or len(request.asks) != 1 else next(iter(request.asks.values()))
        totals = [self._total_mib(share) for share in part.gpus]
        asked = [asked_amounts(ask, total) for total in totals]
        return msgspec.structs.replace(
            _sum(uses, part, now),
            requested_mib=count * min(memory_mib for memory_mib, _ in asked),
            requested_milli=count * min(milli for _, milli in asked),
            total_mib=count * min(totals),
        )

    def _total_mib(self, share: GpuShare) -> int:
        """0 where the GPU is not known."""
        node = self._book.nodes.get(share.node)
        room = None if node is None else node.by_uuid.get(share.uuid)
        return 0 if room is None else room.total_mib


def _sum(uses: list[SliceUse], part: ContainerGrant, now: float) -> Use:
    """Memory and time are spread evenly over a container's GPUs, so the GPU with the most use counts for all."""
    times = [use.gpu_milli for use in uses if use.gpu_milli is not None]
    count = len(part.gpus)
    return Use(
        at_s=now,
        memory_mib=count * max(max(use.memory_mib, use.counted_mib or 0) for use in uses),
        granted_mib=sum(share.memory_mib for share in part.gpus),
        refused=sum(use.refused for use in uses),
        gpu_milli=count * max(times) if len(times) == len(uses) else None,
        granted_milli=sum(share.compute_milli for share in part.gpus),
    )


def _led_to(held: Grant, text: str) -> Grant | None:
    """The grant that this annotation leads to; None if there can be none."""
    try:
        return wanted_grant(held, text) if text else held
    except ResizeError:
        return None


def _text(scale: Autoscale, memory_mib: int, compute_milli: int, use: Use, part: ContainerGrant, *, before: str) -> str:
    """The annotation of these amounts, in whole MiB and tenths of a percent for each GPU. What is not scaled stays as
    it is annotated."""
    parts, count, kept = [], len(part.gpus), _only(before)
    if scale.memory is not None:
        parts.append(f"memory={_even(memory_mib, count, scale.memory)}Mi")
    elif kept.memory_bytes is not None:
        parts.append(encode_resize({"": Wanted(memory_bytes=kept.memory_bytes)}))
    if scale.compute is not None and use.granted_milli:
        parts.append(f"compute={min(WHOLE_GPU_MILLI * count, _even(compute_milli, count, scale.compute)) / 10:g}")
    elif kept.percent is not None:
        parts.append(encode_resize({"": Wanted(percent=kept.percent)}))
    return ",".join(parts)


def _only(text: str) -> Wanted:
    """What an annotation says of the only container with GPUs."""
    try:
        return next(iter(read_resize(text).values())) if text else Wanted()
    except ResizeError:
        return Wanted()  # placement has told the user


def _even(amount: int, count: int, bounds: Bounds) -> int:
    """The amount that can be divided over so many GPUs: no less, unless that were beyond the bounds."""
    more = -(-amount // count) * count
    return more if more <= bounds.high or amount > bounds.high else amount // count * count
