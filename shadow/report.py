"""The report of shadow mode as an object: what `--json` prints, and of which the page is made."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shadow.compare import Comparison, compare
from shadow.history import History, NodeIs, NodeLeaves, read_history
from shadow.objects import AnyFact
from shadow.rerun import Rerun, rerun
from shared.model.timestamps import seconds_text


class Report(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    namespaces: tuple[str, ...]
    """Only their pods were seen; empty: all."""
    began: str
    watched_s: float
    peers: tuple[str, ...]
    """Whose grants were read."""
    nodes: int
    """With healthy GPUs, at the end."""
    gpus: int
    grants_read: int
    grants_wrong: int
    wrong: tuple[str, ...]
    """Each of those, with the GPU that was given away twice or does not exist."""
    unreadable: tuple[str, ...]
    comparison: Comparison


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A report with what it was made of."""

    report: Report
    history: History
    kerf: Rerun


def make(facts: Iterable[AnyFact], policy: str = "kerf") -> Made:
    history = read_history(facts)
    kerf = rerun(history, policy)
    nodes: dict[str, int] = {}
    for step in history.steps:
        if isinstance(step, NodeIs):
            nodes[step.name] = sum(device.healthy for device in step.devices)
        elif isinstance(step, NodeLeaves):
            nodes.pop(step.name, None)
    report = Report(
        source=history.source,
        namespaces=history.namespaces,
        began=seconds_text(history.began_s),
        watched_s=round(history.ended_s - history.began_s, 1),
        peers=history.peers,
        nodes=sum(1 for gpus in nodes.values() if gpus),
        gpus=sum(nodes.values()),
        grants_read=history.grants_read,
        grants_wrong=len(history.grants_wrong),
        wrong=history.grants_wrong,
        unreadable=history.unreadable,
        comparison=compare(history, kerf),
    )
    return Made(report=report, history=history, kerf=kerf)
