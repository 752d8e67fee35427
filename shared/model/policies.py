"""The placement policies that a pod or a setting can name: one line each, and those of plug-ins (`kerf.policies`).

Admission and the settings check names, and must not import placement; so the classes are named here and loaded there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from shared import plugins

BUILT_IN: dict[str, str] = {
    "kerf": "services.placement.policies.kerf.policy:Kerf",
    "binpack": "services.placement.policies.binpack:Binpack",
    "spread": "services.placement.policies.spread:Spread",
    "least-loaded-nearest": "services.placement.policies.least_loaded_nearest:LeastLoadedNearest",
}
"""The class of each policy (services.placement.policies.base.Policy), as `module:name`."""

POLICIES: tuple[str, ...] = (*BUILT_IN, *plugins.names("kerf.policies", BUILT_IN))

if TYPE_CHECKING:
    PolicyName = str
else:
    PolicyName = Literal[("", *POLICIES)]
    """Empty: the installation's default."""
