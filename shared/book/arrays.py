"""The book's nodes as columns, one row a node, so that a question about all nodes is a few numpy operations.

Rows are handed out and taken back as nodes come and go; a row without a node fits nothing. Every change of a row is
noted in `changes`, so that a reader with a cursor looks only at what moved since it last looked.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.book.mig import MigCut
from shared.book.shares import GpuRoom
from shared.model.gpu import Gpu, Inventory

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NOTHING_FITS = -1
NO_CLASS = -1
_ALIKE = log(1.05)
NOT_MIG = -1
_MAX_CHANGES = 65536


def both(one: Bools | None, other: Bools | None) -> Bools | None:
    """The rows that are in both; None: all rows."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


class Arrays:
    """Free amounts can be negative: a node may be overcommitted after another scheduler bound pods to it."""

    def __init__(self, rows: int = 64, columns: int = 8) -> None:
        self.rows, self.columns = rows, columns
        self.generation = 0
        """Rises when rows are added, and with the first GPU in MIG mode: what was computed before is to be thrown away.
        """
        self.cpu_free: Ints = np.full(rows, NOTHING_FITS, np.int64)
        self.memory_free: Ints = np.full(rows, NOTHING_FITS, np.int64)
        self.ephemeral_free: Ints = np.full(rows, NOTHING_FITS, np.int64)
        self.pods_free: Ints = np.full(rows, NOTHING_FITS, np.int64)
        self.cpu_total: Ints = np.zeros(rows, np.int64)
        """0 where there is no Node object: an inventory outlives it, for the node may come back."""
        self.memory_total: Ints = np.zeros(rows, np.int64)
        self.gpu_free_mib: Ints = np.full((rows, columns), NOTHING_FITS, np.int64)
        self.gpu_free_milli: Ints = np.full((rows, columns), NOTHING_FITS, np.int64)
        self.gpu_total_mib: Ints = np.zeros((rows, columns), np.int64)
        self.gpu_containers: Ints = np.zeros((rows, columns), np.int64)
        self.gpu_whole: Bools = np.zeros((rows, columns), np.bool_)
        """Usable, and nothing at all is on it."""
        self.gpu_mig_geometry: Ints = np.full((rows, columns), NOT_MIG, np.int64)
        """For a GPU in MIG mode, its geometry's index in `model.mig.GEOMETRIES`; else NOT_MIG. The free amounts of such
        a GPU say what further instances can have together, not whether one of a size still fits: `gpu_mig_fits` says
        that."""
        self.gpu_mig_cut: Ints = np.full((rows, columns), NOT_MIG, np.int64)
        """Of a GPU in MIG mode, its place in `cuts`; else NOT_MIG."""
        self.cuts: list[MigCut] = []
        """The ways in which GPUs in MIG mode give instances, each once."""
        self.any_mig = False
        """Whether a GPU in MIG mode has ever been among them."""
        self.gpu_mig_used: Ints = np.zeros((rows, columns), np.int64)
        """The mask of a MIG GPU's memory slices that no new instance can have."""
        self.gpu_mig_fits: Ints = np.zeros((rows, columns), np.int64)
        """The mask of profiles (`model.mig.PROFILES`) of which the GPU can give one more instance."""
        self.gpu_count: Ints = np.zeros(rows, np.int64)
        self.stamp: Ints = np.zeros(rows, np.int64)
        """Of the node in the row (`NodeState.stamp`): what node filters depend on; 0 without a node."""
        self.gpu_kind: Ints = np.zeros((rows, columns), np.int64)
        """The GPU's place in `kinds`."""
        self.kinds: list[Gpu] = []
        """GPUs of one model, memory and capability, all in MIG mode or none, are of one kind, represented by the first
        one seen."""
        self.node_class: Ints = np.full(rows, NO_CLASS, np.int64)
        """The node's place in `classes`, or NO_CLASS without GPUs."""
        self.classes: list[tuple[int, ...]] = []
        """Nodes with the same kinds of GPUs and about the same CPU and memory are of one class: the kinds, by GPU."""
        self._kind_of: dict[tuple[str, int, str, bool], int] = {}
        self._cut_of: dict[MigCut, int] = {}
        self._class_of: dict[tuple[tuple[int, ...], int, int], int] = {}
        self.inventories: dict[int, Inventory] = {}
        """By row, for nodes that have one: what no array holds, such as how GPUs are linked."""
        self.changes: list[int] = []
        self.changes_base = 0
        """How many older changes have been forgotten; a cursor below it must look at everything."""

    @property
    def there(self) -> Bools:
        """Which of the GPUs exist: by an inventory, on a node that is there."""
        there: Bools = (self.gpu_total_mib > 0) & (self.cpu_total > 0)[:, None]
        return there

    @property
    def cursor(self) -> int:
        return self.changes_base + len(self.changes)

    def since(self, cursor: int) -> list[int] | None:
        """Rows changed since `cursor`, each once, or None where that is no longer known."""
        if cursor < self.changes_base:
            return None
        return list(dict.fromkeys(self.changes[cursor - self.changes_base :]))

    def note(self, row: int) -> None:
        if len(self.changes) >= _MAX_CHANGES:
            self.changes_base += len(self.changes)
            self.changes = []
        self.changes.append(row)

    def clear(self, row: int) -> None:
        self.cpu_total[row] = self.memory_total[row] = 0
        self.node_class[row] = NO_CLASS
        self.stamp[row] = 0
        for column in (self.cpu_free, self.memory_free, self.ephemeral_free, self.pods_free):
            column[row] = NOTHING_FITS
        self.gpu_count[row] = 0
        self.inventories.pop(row, None)
        self.write_gpus(row, ())

    def write_gpus(self, row: int, gpus: Sequence[GpuRoom]) -> None:
        if len(gpus) > self.columns:
            self._grow(self.rows, max(len(gpus), 2 * self.columns))
        self.gpu_free_mib[row] = NOTHING_FITS
        self.gpu_free_milli[row] = NOTHING_FITS
        self.gpu_total_mib[row] = 0
        self.gpu_containers[row] = 0
        self.gpu_whole[row] = False
        self.gpu_mig_geometry[row] = self.gpu_mig_cut[row] = NOT_MIG
        self.gpu_mig_used[row] = 0
        self.gpu_mig_fits[row] = 0
        self.gpu_count[row] = len(gpus)
        for gpu in gpus:
            self.write_gpu(row, gpu)
            if gpu.mig is not None:
                self.gpu_mig_cut[row, gpu.column] = self._place_of(gpu.mig.cut(gpu.model, gpu.total_mib))
        self.note(row)

    def _place_of(self, cut: MigCut) -> int:
        if cut not in self._cut_of:
            self._cut_of[cut] = len(self.cuts)
            self.cuts.append(cut)
        return self._cut_of[cut]

    def classify(self, row: int, gpus: Sequence[Gpu]) -> None:
        """The node's identity by its GPUs in array order and by its totals; reported again when these change."""
        kinds = []
        for gpu in gpus:
            key = (gpu.model, gpu.memory_mib, gpu.compute_capability, gpu.mig_enabled)
            if key not in self._kind_of:
                self._kind_of[key] = len(self.kinds)
                self.kinds.append(gpu)
            kinds.append(self._kind_of[key])
        self.gpu_kind[row, : len(kinds)] = kinds
        self.node_class[row] = NO_CLASS
        if kinds:
            size = (tuple(kinds), _about(int(self.cpu_total[row])), _about(int(self.memory_total[row])))
            if size not in self._class_of:
                self._class_of[size] = len(self.classes)
                self.classes.append(tuple(kinds))
            self.node_class[row] = self._class_of[size]

    def write_gpu(self, row: int, gpu: GpuRoom) -> None:
        column = gpu.column
        self.gpu_free_mib[row, column] = gpu.free_mib if gpu.usable else NOTHING_FITS
        self.gpu_free_milli[row, column] = gpu.free_milli if gpu.usable else NOTHING_FITS
        self.gpu_total_mib[row, column] = gpu.total_mib
        self.gpu_containers[row, column] = gpu.containers
        if gpu.mig is not None and not self.any_mig:
            self.any_mig = True
            self.generation += 1
        self.gpu_mig_geometry[row, column] = NOT_MIG if gpu.mig is None else gpu.mig.geometry
        if gpu.mig is not None:
            self.gpu_mig_used[row, column] = gpu.mig.used
            self.gpu_mig_fits[row, column] = gpu.mig.bits if gpu.usable else 0
        self.gpu_whole[row, column] = gpu.mig is None and gpu.idle

    def ensure_rows(self, rows: int) -> None:
        if rows > self.rows:
            self._grow(max(rows, 2 * self.rows), self.columns)

    def _grow(self, rows: int, columns: int) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, np.ndarray):
                continue
            fill: Any = (
                NOTHING_FITS
                if "free" in name
                else NO_CLASS
                if name == "node_class"
                else NOT_MIG
                if name in ("gpu_mig_geometry", "gpu_mig_cut")
                else 0
            )
            shape = (rows, columns) if value.ndim == 2 else (rows,)
            grown = np.full(shape, fill, value.dtype)
            grown[tuple(slice(0, n) for n in value.shape)] = value
            setattr(self, name, grown)
        self.rows, self.columns = rows, columns
        self.generation += 1


def _about(amount: int) -> int:
    """Equal for amounts that differ by a few percent: what nodes of one make can allocate is never quite the same."""
    return round(log(amount) / _ALIKE) if amount > 0 else 0
