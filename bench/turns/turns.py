"""Whose turn it is on each GPU of one node: the queue, the memory, and the orders that follow. Pure.

The rules are those of `shared.turns.rules`. A job that yields keeps its memory on the GPU where it fits beside what
comes; otherwise the memory of suspended jobs goes to the host, first that of the one that yields, as long as the host
has room.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from shared.turns.rules import Job, TurnRules, rank, yields

Place = Literal["new", "runs", "paused", "host", "done"]


class Program(msgspec.Struct, kw_only=True):
    """One program. It stays on the GPU of its first turn, from the moment at which that is decided."""

    name: str
    memory_mib: int
    kernels: int
    seed: int
    place: Place = "new"
    gpu: int = -1
    since_s: float = 0.0
    attained_s: float = 0.0

    def job(self, now_s: float) -> Job:
        ran_s = now_s - self.since_s if self.place == "runs" else 0.0
        return Job(key=self.name, attained_gpu_ms=round((self.attained_s + ran_s) * 1000), since=self.since_s)

    def move(self, place: Place, now_s: float) -> None:
        if self.place == "runs":
            self.attained_s += now_s - self.since_s
        self.place, self.since_s = place, now_s


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One change on a GPU: what is suspended, in this order, and what runs then."""

    gpu: int
    pause: tuple[str, ...] = ()
    to_host: tuple[str, ...] = ()
    next: str

    @property
    def kind(self) -> str:
        return "checkpoint" if self.to_host else "pause"


class Node(msgspec.Struct, frozen=True, kw_only=True):
    gpus: int
    gpu_mib: int
    host_mib: int
    rules: TurnRules


def due(node: Node, programs: Iterable[Program], busy: Iterable[int], now_s: float) -> list[Turn]:
    """The turns that begin now, at most one for each GPU that is not `busy` with one."""
    all_of = [program for program in programs if program.place != "done"]
    host_mib = node.host_mib - sum(program.memory_mib for program in all_of if program.place == "host")
    waiting = sorted(
        (program for program in all_of if program.place != "runs"),
        key=lambda program: rank(program.job(now_s), node.rules, now_s),
    )
    found: dict[int, Turn] = {}
    taken = set(busy)
    for program in waiting:
        places = range(node.gpus) if program.gpu < 0 else (program.gpu,)
        turns = [
            turn
            for gpu in places
            if gpu not in taken and (turn := _turn(node, all_of, program, gpu, host_mib, now_s)) is not None
        ]
        if not turns:
            continue
        best = min(turns, key=lambda turn: (len(turn.to_host), len(turn.pause), turn.gpu))
        found[best.gpu] = best
        taken.add(best.gpu)
        host_mib -= sum(each.memory_mib for each in all_of if each.name in best.to_host)
    return list(found.values())


def _turn(node: Node, all_of: list[Program], program: Program, gpu: int, host_mib: int, now_s: float) -> Turn | None:
    """The turn by which a waiting program gets this GPU now; None if it does not."""
    runs = next((each for each in all_of if each.place == "runs" and each.gpu == gpu), None)
    if runs is not None and not yields(runs.job(now_s), program.job(now_s), node.rules, now_s):
        return None
    there = [each for each in all_of if each.gpu == gpu and each.place in ("runs", "paused") and each is not program]
    free_mib = node.gpu_mib - sum(each.memory_mib for each in there) - program.memory_mib
    to_host: list[Program] = []
    # The one that has had most goes first: it waits for longest.
    for each in sorted(there, key=lambda each: (each is runs, each.job(now_s).attained_gpu_ms), reverse=True):
        if free_mib >= 0:
            break
        to_host.append(each)
        free_mib += each.memory_mib
    if free_mib < 0 or sum(each.memory_mib for each in to_host) > host_mib:
        return None
    pause = () if runs is None or runs in to_host else (runs.name,)
    return Turn(gpu=gpu, pause=pause, to_host=tuple(each.name for each in to_host), next=program.name)
