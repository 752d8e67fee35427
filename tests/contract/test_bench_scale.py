"""A short run of the bench of scale, on the simulated API server: what it prints, and that a takeover is stood."""

from __future__ import annotations

from pathlib import Path

from bench.scale.__main__ import measure


async def test_a_small_cluster_is_measured_through_a_takeover(tmp_path: Path) -> None:
    found = await measure(tmp_path, 80, 1600, lambda _: None, simulated=True, struck=("takeover",), idle_s=0.5)
    assert found["bound_seen"] == 1600
    assert found["end"]["double_bookings_in_book"] == 0
    assert found["takeover"].keys() == {"gap_s", "from_kill_s", "from_lease_s"}
    undisturbed = found["undisturbed"]
    assert undisturbed["bindings_per_s"] > 0
    assert undisturbed["nats_a_pod"]["in_bytes"] > 0
    assert {"watcher", "placement", "preemptor", "metrics", "node_agent", "nats"} == undisturbed["cpu_us_a_pod"].keys()
    assert found["end"]["rss_mb"].keys() == undisturbed["cpu_us_a_pod"].keys()
    assert found["end"]["streams"]["KERF_LOG"]["messages"] > 0
    assert all(count > 0 for count in found["end"]["metrics_series"].values())
