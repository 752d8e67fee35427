"""What a sample says of slices, as far as it is the word of the nodes that have them."""

from __future__ import annotations

import msgspec

from shared.book.book import Book
from shared.contracts.samples import UsageSample


def granted_use(sample: UsageSample, book: Book) -> UsageSample:
    """Returns the sample without slices of pods whose grants do not have the GPU on the sample's node: an agent could
    invent them, and each pod's UID is known to all nodes."""
    gpus = (
        msgspec.structs.replace(
            gpu, slices=tuple(use for use in gpu.slices if _is_granted(book, use.uid, sample.node, gpu.uuid))
        )
        for gpu in sample.gpus
    )
    return msgspec.structs.replace(sample, gpus=tuple(gpus))


def _is_granted(book: Book, uid: str, node: str, gpu: str) -> bool:
    state = book.pods.get(uid)
    held = None if state is None else book.grants.get(state.grant_id)
    if held is None:
        return False
    return any(
        (share.node, share.uuid) == (node, gpu)
        for grant in (held.grant, held.given)  # of a pod that moves, both are meant
        for part in grant.containers.values()
        for share in part.gpus
    )
