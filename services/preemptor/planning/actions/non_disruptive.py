"""The actions that a pod survives, in order of severity, and which of them are enabled."""

from __future__ import annotations

from services.preemptor.planning.actions.base import SuspensionAction
from services.preemptor.planning.actions.checkpoint import Checkpoint
from services.preemptor.planning.actions.pause import Pause
from services.preemptor.planning.actions.shrink import Shrink
from services.preemptor.planning.actions.throttle import Throttle


def allowed(*, shrinks: bool, checkpoints: bool) -> tuple[SuspensionAction, ...]:
    return (Throttle(), Pause(), *((Shrink(),) if shrinks else ()), *((Checkpoint(),) if checkpoints else ()))
