"""The watcher's settings."""

from __future__ import annotations

from typing import Literal

import msgspec

from shared.service.settings import Count, Seconds

WRITES_IN_FLIGHT = 32
"""The limit of patches and evictions, and the usual one of Bindings."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """`source` simulated needs no Kubernetes: an API server in memory that listens to kerf.v1.sim.apply and .delete."""

    source: Literal["kubernetes", "simulated"] = "kubernetes"
    kubeconfig: str = ""
    """Empty: KUBECONFIG, then the service account of the pod, then ~/.kube/config."""
    context: str = ""
    strict_x509: bool = True
    """False accepts a cluster CA without the key-usage extension, which Python 3.13 and later refuse."""
    admission_url: str = ""
    """Simulated only: where pods are reviewed at creation, such as http://127.0.0.1:8443/mutate. Empty: nowhere."""
    binds_in_flight: Count = WRITES_IN_FLIGHT
    batch_facts: Count = 64
    batch_ms: Count = 40
    """A single fact is sent at once; under load batches are sent this often. A batch wakes each of its readers, and
    all that follows: that costs as much as ten facts."""
    heartbeat_s: Seconds = 1.0
    snapshot_ttl_s: Seconds = 30.0
