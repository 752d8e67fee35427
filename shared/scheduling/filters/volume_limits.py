from __future__ import annotations

from collections import defaultdict

from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.book.volume_claims import claim_names, claims_of
from shared.contracts.explain import Reason
from shared.model.objects import Pod
from shared.model.storage import CSINode, PersistentVolume, StorageClass, driver_of
from shared.scheduling.filters.base import Check, Filter


class VolumeLimits(Filter):
    """Excludes nodes to which a driver could not attach the pod's volumes besides those of the pods there (as
    kube-scheduler's NodeVolumeLimits, by CSINode).

    A volume that several pods of a node mount counts once; one that is yet to be made counts for its class' driver.
    A driver that names no limit has none. Volumes of pods that have ended and are still being detached are not counted.
    """

    name = "volume-limits"
    scope = "cluster"

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        own = _by_driver(pod.pod, book)
        if not own:
            return None
        known = book.others.get(CSINode.__name__, {})

        def check(node: NodeState) -> Reason | None:
            if (drivers := known.get(node.name)) is None:
                return None
            limits = {d.name: d.allocatable.count for d in drivers.spec.drivers if d.name in own and d.allocatable}
            counted = {driver: count for driver, count in limits.items() if count is not None}
            mounted = sum(len(claim_names(other.pod)) for other in node.pods.values())
            if all(mounted + len(own[driver]) <= count for driver, count in counted.items()):
                return None  # without looking at which of them a driver attaches
            there: dict[str, set[str]] = defaultdict(set)
            for other in node.pods.values():
                for driver, handles in _by_driver(other.pod, book).items():
                    there[driver] |= handles
            for driver, count in counted.items():
                if not own[driver] <= there[driver] and len(own[driver] | there[driver]) > count:
                    return Reason(
                        code="volume-limit",
                        sentence=f"the node can attach {count} volumes of {driver}, pods there have "
                        f"{len(there[driver])}, and the pod brings {len(own[driver] - there[driver])}",
                        helps="wait until pods with volumes have ended there, or put the data on fewer volumes",
                    )
            return None

        return check


def _by_driver(pod: Pod, book: Book) -> dict[str, set[str]]:
    """The pod's volumes by driver: their names, or the claims of those that are not made, or not known, yet."""
    volumes, classes = (book.others.get(kind, {}) for kind in (PersistentVolume.__name__, StorageClass.__name__))
    found: dict[str, set[str]] = defaultdict(set)
    for path, claim in claims_of(pod, book).items():
        volume = volumes.get(claim.spec.volume_name)
        storage = classes.get(claim.spec.storage_class_name or "")
        if volume is not None:
            found[volume.driver].add(volume.metadata.name)
        elif storage is not None:
            found[driver_of(storage)].add(path)
    return found
