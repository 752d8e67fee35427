"""The watcher's metrics that are read when they are asked for."""

from __future__ import annotations

from services.watcher.announcer import Announcer
from services.watcher.core import Core
from services.watcher.executors.batches import Batches
from services.watcher.feed import Feed
from services.watcher.reach import Reach
from shared.ports.source import Source
from shared.telemetry.metrics import Metrics


def export(
    metrics: Metrics, core: Core, feed: Feed, *, reach: Reach, source: Source, announcer: Announcer, batches: Batches
) -> None:
    gauge = metrics.observe_by
    gauge("kerf_watcher_pods", "Pods known.", lambda: core.count("Pod"))
    gauge("kerf_watcher_nodes", "Nodes known.", lambda: core.count("Node"))
    gauge(
        "kerf_watcher_kinds_troubled",
        "Kinds that are not followed now and may be out of date.",
        lambda: source.troubled,
    )
    gauge(
        "kerf_watcher_serving",
        "Takes orders and questions; 0 where another watcher does, since this one does not reach the API server.",
        lambda: reach.state == "serves",
    )
    gauge("kerf_watcher_binds_waiting", "Binds in flight or waiting.", lambda: batches.binding)
    for name, text, read in (
        ("feed_number", "The number of the newest batch of facts.", lambda: core.number),
        ("facts_suppressed_total", "Changes that mean nothing to scheduling.", lambda: core.suppressed),
        ("feed_lost_total", "Batches of facts that could not be published.", lambda: feed.lost),
        ("announcements_written_total", "Events and conditions written.", lambda: announcer.written),
        ("announcements_failed_total", "Events and conditions refused.", lambda: announcer.failed),
        ("announcements_shed_total", "Events and conditions dropped under load.", lambda: announcer.shed),
    ):
        metrics.observe_by(f"kerf_watcher_{name}", text, read, kind="counter")
