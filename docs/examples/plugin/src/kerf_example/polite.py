"""A strategy: as `advisory`, and the container is told to be polite. All services read this description, so it imports
nothing but `shared.model.strategy`; the driver is loaded on nodes alone."""

from __future__ import annotations

from shared.model.strategy import Strategy

POLITE = Strategy(
    name="polite",
    promise="soft",
    preference=10,  # before `advisory`
    proof="own",
    driver="kerf_example.polite_driver:PoliteDriver",
)
