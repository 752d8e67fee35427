"""All parsers that are tried, by where their input comes from."""

from __future__ import annotations

from functools import cache

from tests.fuzz.parser import Parser
from tests.fuzz.parsers import admission, bus, cluster, decisions, documents, node


@cache
def parsers() -> tuple[Parser, ...]:
    modules = (admission, cluster, bus, documents, node, decisions)
    return tuple(parser for module in modules for parser in module.parsers())
