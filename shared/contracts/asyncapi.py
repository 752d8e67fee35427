"""The bus as an AsyncAPI 3.1.0 document: https://www.asyncapi.com/docs/reference/specification/v3.1.0"""

from __future__ import annotations

from typing import Any

import msgspec

from shared.contracts.envelope import CONTENT_TYPE, Envelope, type_of
from shared.contracts.registry import CHANNELS, PARAMETERS, Channel, message_types, parameters_of

_REFS = "#/components/schemas/{name}"

_DESCRIPTION = """\
Everything that Kerf's services and tools say to each other over NATS.

Public events (`kerf.v1.event.>`) are CloudEvents 1.0 in structured mode and are for anyone; the stream KERF_EVENTS lets
late-comers replay them. What is not an event is between Kerf's own services and may change with them.

Consumers ignore fields that they do not know. Within a version no field is taken away or newly required. Delivery is at
least once: use the event's `id`. A time-out of a request means that it may or may not have been acted on.

An answer that is larger than one message comes in parts if the request has the header `Kerf-Accept: parts`. Each part
has the headers `Kerf-Answer` (an id, the same for all parts) and `Kerf-Part` (such as `2/7`); the bodies one after the
other are the answer, which is of one moment. Without that header, and where an answer cannot be sent at all, the one
message that comes has the header `Kerf-Error` and the body `{"error": "..."}`. A batch of the feed that is larger than
one message always comes in parts, with the same two headers, one after the other.
"""


def document() -> dict[str, Any]:
    """Deterministic: the same contracts give the same bytes."""
    _, schemas = msgspec.json.schema_components(message_types(), ref_template=_REFS)
    schemas = {name: _without_discriminator(schema) for name, schema in schemas.items()}
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    for channel in CHANNELS:
        carried = [_message(channel, messages)]
        channels[channel.name] = _channel(channel, carried)
        operations[channel.name] = operation = {
            "action": "send",
            "channel": {"$ref": f"#/channels/{channel.name}"},
            "summary": channel.description,
            "tags": [{"name": channel.kind}],
            "messages": [{"$ref": f"#/channels/{channel.name}/messages/{name}"} for name in carried],
            "x-publisher": channel.publisher,
            "x-receivers": channel.receivers,
        }
        if channel.reply is not None:
            answer = _plain(channel.reply, messages)
            reply_channel = f"{channel.name}.reply"
            channels[reply_channel] = made = {
                "address": channel.reply_address or None,
                "description": f"Answers to {channel.name}, on the reply subject that each order names.",
                "messages": {answer: {"$ref": f"#/components/messages/{answer}"}},
            }
            if names := parameters_of(channel.reply_address):
                made["parameters"] = {name: {"description": PARAMETERS[name]} for name in names}
            operation["reply"] = {
                "channel": {"$ref": f"#/channels/{reply_channel}"},
                "messages": [{"$ref": f"#/channels/{reply_channel}/messages/{answer}"}],
            }
    return {
        "asyncapi": "3.1.0",
        "info": {"title": "Kerf", "version": "1.0.0", "description": _DESCRIPTION, "license": {"name": "Apache-2.0"}},
        "defaultContentType": "application/json",
        "servers": {
            "nats": {
                "host": "nats.kerf-system.svc:4222",
                "protocol": "nats",
                "description": "The NATS server of the cluster; `kerf up` runs one of its own.",
            }
        },
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": {name: messages[name] for name in sorted(messages)},
            "schemas": {name: schemas[name] for name in sorted(schemas)},
        },
    }


def _without_discriminator(schema: Any) -> Any:
    """JSON Schema has no discriminator, OpenAPI's is an object and AsyncAPI's a string; the tag is a constant in each
    member of the union, which all readers understand."""
    if isinstance(schema, list):
        return [_without_discriminator(each) for each in schema]
    if isinstance(schema, dict):
        return {
            key: _without_discriminator(value)
            for key, value in schema.items()
            if key != "discriminator" or not isinstance(value, dict)
        }
    return schema


def _channel(channel: Channel, carried: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "address": channel.address,
        "description": channel.description,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in carried},
        "x-kind": channel.kind,
        "x-retention": channel.retention,
    }
    if channel.parameters:
        made["parameters"] = {name: {"description": PARAMETERS[name]} for name in channel.parameters}
    return made


def _message(channel: Channel, messages: dict[str, Any]) -> str:
    if channel.kind != "event":
        return _plain(channel.message, messages)
    kind = channel.message
    messages[kind.__name__] = {
        "name": kind.__name__,
        "summary": channel.description,
        "contentType": CONTENT_TYPE,
        "payload": {
            "allOf": [
                {"$ref": _REFS.format(name=Envelope.__name__)},
                {
                    "type": "object",
                    "properties": {
                        "type": {"const": type_of(kind)},
                        "data": {"$ref": _REFS.format(name=kind.__name__)},
                    },
                },
            ]
        },
    }
    return str(kind.__name__)


def _plain(kind: Any, messages: dict[str, Any]) -> str:
    if kind is str:
        messages["Text"] = {"name": "Text", "contentType": "text/plain", "payload": {"type": "string"}}
        return "Text"
    messages[kind.__name__] = {
        "name": kind.__name__,
        "summary": (kind.__doc__ or "").strip().splitlines()[0] if kind.__doc__ else kind.__name__,
        "contentType": "application/json",
        "payload": {"$ref": _REFS.format(name=kind.__name__)},
    }
    return str(kind.__name__)
