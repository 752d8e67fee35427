"""The users of NATS have one definition, which agrees with the channels of the registry."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared.contracts import permissions, subjects
from shared.contracts.generate import check_configurations
from shared.contracts.permissions import USERS, Row
from shared.contracts.registry import CHANNELS, Channel

SERVICES = {user.name: user for user in USERS}


def allowed(rows: tuple[Row, ...], address: str) -> bool:
    """Whether one of the rows has a subject that covers the address, whatever its parameters are."""
    tokens = [re.sub(r"^\{.*\}$", "x", token) for token in address.split(".")]
    return any(covers(subject.split("."), tokens) for row in rows for subject in row.subjects)


def covers(subject: list[str], tokens: list[str]) -> bool:
    if subject[-1] == ">":
        return len(tokens) >= len(subject) and covers(subject[:-1], tokens[: len(subject) - 1])
    return len(subject) == len(tokens) and all(a in ("*", b) for a, b in zip(subject, tokens, strict=True))


def of_users(text: str) -> list[str]:
    """The services in a channel's `publisher` or `receivers`; those of the simulated cluster have no users."""
    return [] if "simulated" in text else [name for name in SERVICES if re.search(rf"\b{name}\b", text)]


WITH_AN_IDENTITY = "identity"
"""The channel that the user of all agents may not use: who shares a name with others gets no certificate."""


@pytest.mark.parametrize(
    "channel", [c for c in CHANNELS if c.kind != "bucket" and c.name != WITH_AN_IDENTITY], ids=lambda c: c.name
)
def test_who_publishes_and_receives_a_channel_may_do_so(channel: Channel) -> None:
    for name in of_users(channel.publisher) if "simulated" not in channel.receivers else ():
        assert allowed(SERVICES[name].publish, channel.address), f"{name} may not publish {channel.address}"
    for name in of_users(channel.receivers):
        if channel.kind != "log":  # read through JetStream
            assert allowed(SERVICES[name].subscribe, channel.address), f"{name} may not hear {channel.address}"


def test_only_an_agent_with_an_identity_of_its_own_may_ask_for_a_certificate() -> None:
    assert [name for name, user in SERVICES.items() if allowed(user.publish, subjects.identity("n"))] == []
    assert allowed(permissions.agent_of("n").publish, subjects.identity("n"))
    assert "kerf.v1.identity.*" in permissions.render_callout()


def test_only_placement_may_write_the_log() -> None:
    assert [name for name, user in SERVICES.items() if allowed(user.publish, "kerf.v1.log.decisions")] == ["placement"]


def test_a_file_that_was_edited_by_hand_is_named(tmp_path: Path) -> None:
    (tmp_path / "chart" / "files").mkdir(parents=True)
    charts = tmp_path / "chart" / "files"
    (tmp_path / "nats.conf").write_text(permissions.render())
    (charts / "nats-shared.conf").write_text(permissions.render_shared())
    (charts / "nats-callout-users").write_text(f"{permissions.callout_users_digest()}\n")
    for folder in (tmp_path, charts):
        (folder / "nats-callout.conf").write_text(permissions.render_callout())
    assert check_configurations(tmp_path) == []
    (tmp_path / "nats.conf").write_text("edited")
    assert check_configurations(tmp_path) == ["nats.conf differs from permissions.py"]


def test_a_nodes_agent_may_only_what_all_agents_share() -> None:
    """And of what names a node, its own alone."""
    shared, own = SERVICES["node_agent"], permissions.agent_of("n.1")
    for mine, all_agents in ((own.publish, shared.publish), (own.subscribe, shared.subscribe)):
        for row in mine:
            for subject in row.subjects:
                assert subject == subjects.identity("n.1") or any(
                    covers(other.split("."), subject.split(".")) for each in all_agents for other in each.subjects
                ), subject
    named = [s for row in (*own.publish, *own.subscribe) for s in row.subjects if "n_2e1" in s]
    assert len(named) >= 8


@pytest.mark.parametrize("channel", [c for c in CHANNELS if "{node}" in c.address], ids=lambda c: c.name)
def test_what_an_agent_says_and_hears_of_its_node_is_its_own(channel: Channel) -> None:
    own, other = channel.address.replace("{node}", "n"), channel.address.replace("{node}", "m")
    user = permissions.agent_of("n")
    if "node_agent" in channel.publisher:
        assert allowed(user.publish, own)
        assert not allowed(user.publish, other)
    if "node_agent" in channel.receivers:
        assert allowed(user.subscribe, own)
        assert not allowed(user.subscribe, other)
