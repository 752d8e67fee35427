"""The base of the specs of these objects."""

from __future__ import annotations

import msgspec


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    """A part of an object; of its fields those that say something of gangs."""
