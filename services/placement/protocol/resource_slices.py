"""What nodes' ResourceSlices say: they tell other systems what a node has, and nothing is allocated from them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import msgspec

from shared.book.book import Book
from shared.contracts.commands import PublishSlice, SliceDevice
from shared.model import names
from shared.model.claims import ResourceSlice, device_name
from shared.model.generations import generation_of
from shared.model.gpu import Gpu, Inventory

PUBLISH_AGAIN_S = 5.0
LOOK_S = 1.0
"""How often all nodes are looked at."""
PUBLISH_AT_ONCE = 50
_ENCODER = msgspec.json.Encoder(order="deterministic")


class Slices:
    """What nodes' ResourceSlices should say, and whether they do. The kubelet deletes those of its node when it
    starts."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self._marks: dict[str, tuple[Inventory, str]] = {}
        """By node: the digest of what its slice should say, and the inventory that it was made from."""
        self._ordered: dict[str, float] = {}
        self._look_at = float("-inf")

    def due(self, now: float) -> list[PublishSlice]:
        """Commands for nodes that serve claims and whose slice differs from their inventory; repeated until it does
        not."""
        out: list[PublishSlice] = []
        if now < self._look_at:
            return out
        seen: Mapping[str, ResourceSlice] = self.book.others.get(ResourceSlice.__name__, {})
        for name, node in self.book.nodes.items():
            inventory, there = node.inventory, seen.get(f"{name}-{names.DRA_DRIVER}")
            if inventory is None or not inventory.dra or node.object is None:
                continue
            known, mark = self._marks.get(name, (None, ""))
            has = "" if there is None else there.metadata.annotations.get(names.ANNOTATION_INVENTORY, "")
            if known is inventory and (has == mark or now - self._ordered[name] < PUBLISH_AGAIN_S):
                continue
            devices = tuple(_described(gpu, inventory) for gpu in inventory.gpus if not gpu.mig_enabled)
            mark = hashlib.blake2b(_ENCODER.encode(devices), digest_size=16).hexdigest()
            self._marks[name], self._ordered[name] = (inventory, mark), now
            if has != mark:
                out.append(
                    PublishSlice(
                        node=name,
                        generation=1 if there is None else there.spec.pool.generation + 1,
                        mark=mark,
                        devices=devices,
                    )
                )
            if len(out) == PUBLISH_AT_ONCE:
                return out  # and goes on at the next call
        for name in self._marks.keys() - self.book.nodes.keys():
            del self._marks[name], self._ordered[name]
        self._look_at = now + LOOK_S
        return out


def _described(gpu: Gpu, inventory: Inventory) -> SliceDevice:
    texts = {"type": "gpu", "uuid": gpu.uuid, "productName": gpu.model.replace("-", " "), "brand": "Nvidia"}
    generation = generation_of(gpu.compute_capability)
    if generation:
        texts["architecture"] = generation
    if gpu.pci_bus_id:
        texts["resource.kubernetes.io/pciBusID"] = gpu.pci_bus_id.lower()
    versions = {
        "cudaComputeCapability": gpu.compute_capability,
        "driverVersion": inventory.driver_version,
        "cudaDriverVersion": inventory.cuda_version,
    }
    return SliceDevice(
        name=device_name(gpu.index),
        memory_mib=gpu.memory_mib,
        texts=texts,
        versions={key: semantic for key, text in versions.items() if (semantic := _semantic(text))},
    )


def _semantic(version: str) -> str:
    """9.0 as 9.0.0 and 580.65.06 as 580.65.6, as semantic versions are written; empty if it is not a version."""
    if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18}){0,2}", version):
        return ""
    return ".".join([*(str(int(part)) for part in version.split(".")), "0", "0"][:3])
