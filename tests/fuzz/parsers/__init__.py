"""All parsers that are tried, by where their input comes from."""

from __future__ import annotations

from functools import cache

from tests.fuzz.parser import Parser
from tests.fuzz.parsers import admission, bus, cluster, documents, node


@cache
def parsers() -> tuple[Parser, ...]:
    return (*admission.parsers(), *cluster.parsers(), *bus.parsers(), *documents.parsers(), *node.parsers())
