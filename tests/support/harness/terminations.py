"""Simulates terminating pods: each has a grace period and uses part of it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from shared.model.objects import Pod
from tests.support import build


def is_terminating(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None


class Terminations:
    def __init__(self) -> None:
        self.after_s: dict[str, float] = {}
        """By name, how long a pod takes to end after its deletion; it ends at once if it is not listed."""
        self._due: list[tuple[float, str]] = []
        """(when it is removed, uid)"""

    def at_once(self, pod: Pod) -> bool:
        return not pod.spec.node_name or not self.after_s.get(pod.metadata.name)

    def begin(self, pod: Pod, now: float, wall: float) -> Pod:
        """Returns the pod as the API server shows it from now on.

        `now`: simulated; `wall`: seconds since 1970.
        """
        if is_terminating(pod):
            return pod
        grace_s = pod.spec.termination_grace_period_seconds or 0
        by = datetime.fromtimestamp(wall + grace_s, UTC).isoformat()
        self._due.append((now + self.after_s[pod.metadata.name], pod.metadata.uid))
        meta = msgspec.structs.replace(
            pod.metadata,
            deletion_timestamp=by,
            deletion_grace_period_seconds=grace_s,
            resource_version=build.next_version(),
        )
        return msgspec.structs.replace(pod, metadata=meta)

    def over(self, now: float) -> list[str]:
        """Returns the uids of pods that have ended by now, each once."""
        gone = [uid for at, uid in self._due if at <= now]
        self._due = [(at, uid) for at, uid in self._due if at > now]
        return gone
