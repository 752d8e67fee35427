"""The preemptor's settings."""

from __future__ import annotations

from typing import Annotated

import msgspec

from shared.service.settings import Count, Seconds


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    patience_s: Seconds = 0.2
    """A pod that placement has found no room for waits so long before anybody is asked to make room: something may end."""
    leaving_s: Seconds = 60.0
    """So long after its pod is gone a slice is waited for that its node has not given back; and so long a pod for which others would
    have to go too waits for those who end already. Where what is on its way is enough, it is waited for by grace periods."""
    reclaim_patience: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    """What was borrowed beyond guarantees is taken back when the taker has waited for so much of what that would have destroyed
    when its wait began, both in GPU-seconds; 0: at once."""
    deadline_s: Count = 120
    """How long a plan may take from its reservation on, beside the longest grace period of its victims; what is not free by then is
    given up."""
    plans_most: Count = 64
    """Plans under way at once."""
    shrinks: bool = False
    """Whether pods on enforced slices may be asked to give up GPU memory that they have not allocated. One that grows beyond
    what it is left meets the end of its memory, as on a full GPU."""
    checkpoints: bool = False
    """Whether pods may be asked to go to the host's memory instead of ending. It has been tried on no real driver yet."""
    immunity_s: Seconds = 300.0
    """Pods of an owner of which one has made room are left alone for so long, and twice as long each time again."""
    defragmentation_gpu_seconds_per_hour: Annotated[int, msgspec.Meta(ge=0)] = 0
    """So much running work may be disturbed in any hour to make room for equals, by moves to places that are kept; 0: none is."""
    evictions_per_hour: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Of pods of one namespace; 0 for any number."""
