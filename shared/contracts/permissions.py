"""What NATS users may ask, answer and publish, written into k8s/nats.conf from the registry (`make schemas`).

A comment in the file names what the next line lists, such as "# queries that cli asks". All other lines are written by
hand: they say what is not a query and not an event.
"""

from __future__ import annotations

import re

from shared.contracts import subjects
from shared.contracts.events import EVENTS
from shared.contracts.queries import QUERIES
from shared.contracts.registry import EVENTS as EVENT_CHANNELS

_MARKED = re.compile(r"^( *)# (queries|events) that (\w+) (asks|answers|publishes)\n.*\n", re.MULTILINE)


def render(text: str) -> str:
    """The file with its generated lines as they should be."""
    return _MARKED.sub(_line, text)


def _line(found: re.Match[str]) -> str:
    indent, _, service, verb = found.groups()
    allowed = {"asks": _asked, "answers": _answered, "publishes": _published}[verb](service)
    comment = found[0].partition("\n")[0]
    return comment + "\n" + indent + ", ".join(f'"{subject}"' for subject in allowed) + "\n"


def _asked(service: str) -> list[str]:
    return [query.subject for query in QUERIES if service in query.publisher.split(", ")]


def _answered(service: str) -> list[str]:
    return [query.subject for query in QUERIES if query.receivers == service]


def _published(service: str) -> list[str]:
    """All events of an entity if no other service publishes any of them, else each by its verb."""
    publisher = {channel.message: channel.publisher for channel in EVENT_CHANNELS}
    found: dict[str, None] = {}
    for event in EVENTS:
        if publisher[event] != service:
            continue
        own = all(publisher[other] == service for other in EVENTS if other.ENTITY == event.ENTITY)
        found[f"{subjects.VERSION}.event.{event.ENTITY}.{'' if own else event.VERB + '.'}>"] = None
    return list(found)
