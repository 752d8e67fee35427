"""The contracts as published: AsyncAPI document, JSON Schemas, golden payloads, what may change in a version."""

from __future__ import annotations

import gzip
import inspect
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from shared.contracts import commands, events, facts, log, node_commands, queries, subjects
from shared.contracts.base import ContractError, Message, decode, encode
from shared.contracts.compatibility import breaks
from shared.contracts.envelope import check_subject, unwrap
from shared.contracts.examples import EXAMPLES
from shared.contracts.generate import SCHEMAS, check, files, incompatible, main, schema_of, write
from shared.contracts.registry import CHANNELS, EVENTS, message_types

OFFICIAL = Path(__file__).parents[3] / "data" / "asyncapi" / "asyncapi-3.1.0.schema.json.gz"
TYPES = {kind.__name__: kind for kind in message_types()}


def asyncapi() -> dict[str, Any]:
    return json.loads((SCHEMAS / "asyncapi.json").read_bytes())


def test_the_committed_schemas_are_those_of_the_contracts() -> None:
    """Drift fails here: run `python -m shared.contracts.generate`."""
    assert check() == []


def test_nothing_breaks_the_committed_version() -> None:
    assert incompatible() == []


def test_generation_is_deterministic() -> None:
    assert files() == files()


def test_the_document_validates_against_the_official_schema() -> None:
    official = json.loads(gzip.decompress(OFFICIAL.read_bytes()))
    jsonschema.Draft7Validator.check_schema(official)
    errors = [
        f"{list(error.absolute_path)}: {error.message[:200]}"
        for error in jsonschema.Draft7Validator(official).iter_errors(asyncapi())
    ]
    assert errors == []


def test_every_reference_in_the_document_resolves() -> None:
    """The official schema does not look behind $ref."""
    document = asyncapi()

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [r for each in value.values() for r in references(each)]
        return [r for each in value for r in references(each)] if isinstance(value, list) else []

    for reference in references(document):
        target: Any = document
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]


def test_every_public_event_has_a_channel_and_every_channel_documents_its_parameters() -> None:
    assert {channel.message for channel in EVENTS} == set(events.EVENTS)
    document = asyncapi()["channels"]
    for channel in CHANNELS:
        assert set(document[channel.name].get("parameters", {})) == set(channel.parameters)
        assert channel.description
    assert len({channel.name for channel in CHANNELS}) == len(CHANNELS)
    assert len({channel.address for channel in CHANNELS}) == len(CHANNELS)


def test_every_subject_that_is_named_has_a_channel() -> None:
    """A constant in subjects.py without a channel is an undocumented message."""
    addresses = {channel.address for channel in CHANNELS}
    for name, value in vars(subjects).items():
        if name.isupper() and isinstance(value, str) and value.startswith(f"{subjects.VERSION}."):
            if value == subjects.CMD_RESERVE:
                continue  # the preemptor's, which is not built yet
            pattern = re.compile(r"[^.]+".join(map(re.escape, value.split("*"))).replace(r"\.>", r"\..*"))
            literal = re.sub(r"\{\w+\}", "x", value)
            matched = any(
                pattern.fullmatch(a) or re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^.]+", re.escape(a)), literal)
                for a in addresses
            )
            assert matched, f"subjects.{name} = {value} is in no channel"


def test_every_message_is_reachable_from_a_channel() -> None:
    """A struct in the contracts that no channel carries, not even inside another one, is dead or undocumented."""
    (_, components) = msgspec.json.schema_components(message_types(), ref_template="{name}")
    for module in (commands, events, facts, log, queries):
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ == module.__name__ and issubclass(kind, Message) and kind not in (events.Event,):
                assert name in components, f"{module.__name__}.{name} is carried by no channel"


@pytest.mark.parametrize("name", sorted(TYPES))
def test_a_golden_payload_decodes_and_encodes_to_itself(name: str) -> None:
    golden = (SCHEMAS / "examples" / "v1" / f"{name}.json").read_bytes()
    decoded = decode(golden, TYPES[name])
    assert json.loads(encode(decoded)) == json.loads(golden)
    assert decoded == EXAMPLES[name] or name in (
        "Envelope",
        "SimApply",
        "WhatIfQuery",
    )  # Raw compares by its bytes' layout


@pytest.mark.parametrize("name", sorted(TYPES))
def test_a_golden_payload_is_valid_under_its_schema(name: str) -> None:
    schema = json.loads((SCHEMAS / f"{name}.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(
        json.loads((SCHEMAS / "examples" / "v1" / f"{name}.json").read_bytes())
    )


@pytest.mark.parametrize("name", sorted(TYPES))
def test_unknown_fields_are_ignored(name: str) -> None:
    """So that a field may be added within the version."""
    golden = json.loads((SCHEMAS / "examples" / "v1" / f"{name}.json").read_bytes())
    decode(json.dumps(golden | {"fieldOfTheFuture": {"a": 1}}).encode(), TYPES[name])


def test_the_golden_envelope_unwraps_to_its_event() -> None:
    envelope, event = unwrap((SCHEMAS / "examples" / "v1" / "Envelope.json").read_bytes())
    assert event == EXAMPLES["PlacementDecided"]
    assert envelope.type == "dev.kerf.placement.decided.v1"


def test_a_payload_that_breaks_its_contract_is_refused_with_the_field() -> None:
    with pytest.raises(ContractError, match=r"this is no Beat: Expected `array`, got `str` - at `\$.nodes`"):
        decode(b'{"nodes":"n1"}', node_commands.Beat)
    with pytest.raises(ContractError, match="missing required field `term`"):
        decode(b"{}", log.ReadyRecord)


class Base(msgspec.Struct, rename=None):
    a: int
    b: str = ""


def variant(**fields: Any) -> dict[str, Any]:
    return schema_of(
        msgspec.defstruct(
            "Base", [(name, *spec) if isinstance(spec, tuple) else (name, spec) for name, spec in fields.items()]
        )
    )


@pytest.mark.parametrize(
    ("after", "problem"),
    [
        (variant(a=int, b=(str, "")), None),
        (variant(a=int, b=(str, ""), c=(int, 3)), None),
        (variant(a=(int, 0), b=(str, "")), None),
        (variant(a=int), "Base.b was taken away"),
        (variant(a=int, b=str), "Base.b is newly required"),
        (variant(a=int, c=bytes, b=(str, "")), "Base.c is newly required"),
        (variant(a=str, b=(str, "")), "Base.a was {'type': 'integer'} and is {'type': 'string'}"),
        (variant(a=int | None, b=(str, "")), "Base.a was {'type': 'integer'} and is"),
    ],
)
def test_what_may_change_within_a_version(after: dict[str, Any], problem: str | None) -> None:
    found = breaks(schema_of(Base), after)
    assert (found == []) if problem is None else (len(found) == 1 and problem in found[0])


def test_a_union_may_grow_and_not_shrink() -> None:
    small, large = (
        {"properties": {"x": {"anyOf": [{"type": "string"}]}}},
        {"properties": {"x": {"anyOf": [{"type": "null"}, {"type": "string"}]}}},
    )
    assert breaks(small, large) == []
    assert len(breaks(large, small)) == 1


def test_the_command_refuses_what_breaks_and_writes_what_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--folder", str(tmp_path)]
    assert main([*arguments, "--check"]) == 1
    assert "asyncapi.json is missing" in capsys.readouterr().err
    assert main(arguments) == 0
    assert main([*arguments, "--check"]) == 0
    beat = json.loads((tmp_path / "Beat.json").read_bytes())
    beat["properties"]["since"] = {"type": "integer"}
    (tmp_path / "Beat.json").write_text(json.dumps(beat))
    (tmp_path / "Gone.json").write_text("{}")
    capsys.readouterr()
    assert main(arguments) == 1
    assert "Beat: Beat.since was taken away" in capsys.readouterr().err
    assert main([*arguments, "--break"]) == 0
    assert check(tmp_path) == []


def test_writing_takes_away_what_belongs_to_no_message(tmp_path: Path) -> None:
    (tmp_path / "Old.json").write_text("{}")
    write(tmp_path)
    assert not (tmp_path / "Old.json").exists()
    assert check(tmp_path) == []


ENFORCED = {"uid": "u", "namespace": "n", "name": "p", "container": "c", "grant_id": "g", "strategy": "exclusive"}


@pytest.mark.parametrize("amount", [2**63, -1])
@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (events.NodeInventoried, "gpus"),
        (events.NodeInventoried, "memory_mib"),
        (events.NodeInventoried, "gpus_by_model"),
        (events.SliceEnforced, "memory_mib"),
        (events.SliceEnforced, "compute_milli"),
    ],
)
def test_an_event_with_amounts_that_no_node_has_is_refused(kind: type[Message], field: str, amount: int) -> None:
    """The usage book could not take them, and would stop there for ever."""
    amounts = {"memory_mib": 1, "compute_milli": 1, field: amount}
    said: dict[str, Any] = {"node": "n", "gpus": 1, "memory_mib": 1, field: amount}
    if field == "gpus_by_model":
        said[field] = {"X": amount}
    if kind is events.SliceEnforced:
        said = {"node": "n", **ENFORCED, "promise": "soft", "gpus": {"G": list(amounts.values())}}
    with pytest.raises(ContractError, match=rf"{field}.* is {amount}"):
        decode(json.dumps(said).encode(), kind)


def test_an_event_is_of_the_type_and_the_node_of_its_subject() -> None:
    """One agent could say that another node is gone, on any subject that its NATS user may publish on."""
    inventoried = events.NodeInventoried(node="good", gpus=0, memory_mib=0)
    taken = events.TermTaken(term=1, holder="h")
    check_subject(subjects.event_on_node("node", "inventoried", "good"), inventoried)
    check_subject(subjects.event_on_node("term", "taken", "pod-1"), taken)
    check_subject(subjects.event_in_namespace("slice", "released", "team"), RELEASED)
    with pytest.raises(ContractError, match="own node alone"):
        check_subject(subjects.event_on_node("node", "inventoried", "evil"), inventoried)
    with pytest.raises(ContractError, match=r"of type dev\.kerf\.node\.inventoried\.v1"):
        check_subject(subjects.event_in_namespace("slice", "enforced", "good"), inventoried)


RELEASED = events.SliceReleased(node="n", uid="u", namespace="team", name="p", grant_id="g", boot_id="b")
