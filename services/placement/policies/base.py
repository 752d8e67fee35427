"""What a policy is: it scores nodes on the book's columns, and orders the GPUs of the chosen one."""

from __future__ import annotations

from copy import copy
from typing import ClassVar, Self

import numpy as np

from shared.book.arrays import Arrays, Bools, Ints
from shared.book.book import Book
from shared.book.shares import GpuRoom
from shared.book.states import NodeState, PodState
from shared.model.gpu import Inventory
from shared.model.request import GpuAsk

POLICY_READS = ("demand", "request")
"""The fields of a pod by which a policy scores; they are part of every shape."""
OFTEN_UNTIL_PODS = 512
"""Until then each doubling of what is known is worth a lesson."""
GPU_POLICY_WEIGHT = 10
"""Of a policy's score of a node, among the scores."""
TOP = 1000
"""Scores of policies that do not say otherwise run from 0 to TOP, higher is better."""


class Policy:
    """One instance an engine, for a policy may learn from the pods it meets."""

    name: ClassVar[str]
    alone: ClassVar[bool] = False
    """It also scores nodes for pods without GPUs and breaks ties, so no other packing score is used."""

    picks_sets: ClassVar[bool] = False
    """Whether `pick` chooses several GPUs as a set, in a way of its own."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.edition = 0
        """Rises when scores given before hold no more."""

    def meet(self, pod: PodState, *, placed: bool) -> None:
        """A pod has been tried for the first time, and found its place or not."""

    def learn(self) -> None:
        """Called before each decision, so that the policy can update what it has learned."""

    def score(self, pod: PodState, arrays: Arrays, rows: Ints, fit: Bools | None) -> Ints | None:
        """One score for each row. `fit` says, for each row and GPU index, whether the pod's largest request fits there;
        a row has at least as many fitting GPUs as the pod requests, or its score is not used. None if the policy has
        no opinion."""
        raise NotImplementedError

    def order(self, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState) -> list[GpuRoom]:
        """The node's fitting GPUs, best first."""
        raise NotImplementedError

    def points(self, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState) -> list[int] | None:
        """A score for each of these GPUs, of which the best is the node's (`score`) for a pod that wants one; None
        where the policy has only an order."""
        return None

    def pick(
        self, pod: PodState, ask: GpuAsk, fitting: list[GpuRoom], node: NodeState, inventory: Inventory
    ) -> list[GpuRoom]:
        return self.order(pod, ask, fitting, node)[: ask.count]

    def on(self, book: Book) -> Self:
        """A twin for another book, such as a fork to try things on. It knows what this one has learned, and what it
        learns from then on is its own."""
        twin = copy(self)
        for name, value in vars(self).items():
            setattr(twin, name, book if name == "book" else copy(value))
        return twin

    def words(self, pod: PodState, row: int) -> dict[str, int]:
        """What its score of a row is made of, by term, for `why`."""
        return {}


def next_lesson(met: int, period: int) -> int:
    """After how many pods met to learn again: at 1, 2, 4 … and then each `period`."""
    return max(1, 2 * met) if met < OFTEN_UNTIL_PODS else met + period


def largest_ask(pod: PodState) -> GpuAsk | None:
    """The ask that is hardest to place; policies look at it alone. None for a pod without GPUs."""
    return None if pod.request is None else pod.request.hardest


def used_share(arrays: Arrays, rows: Ints) -> Ints:
    """How much of each node's GPUs is taken, 0 to TOP: the mean over its GPUs of the larger of memory and compute."""
    total = arrays.gpu_total_mib[rows]
    free = np.minimum(
        np.maximum(arrays.gpu_free_mib[rows], 0) * TOP // np.maximum(total, 1),
        np.maximum(arrays.gpu_free_milli[rows], 0),
    )
    count = np.maximum(arrays.gpu_count[rows], 1)
    present = total > 0
    result: Ints = TOP - (free * present).sum(axis=1) // count
    return result
