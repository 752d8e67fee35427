"""Passwords in URLs."""

from __future__ import annotations

import pytest

from shared.redaction import redact, user_of


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nats://reader:s3cret@kerf-nats:4222", "nats://reader:***@kerf-nats:4222"),
        ("at nats://reader:s3/c@ret@a:1,nats://b:x@c:2 now", "at nats://reader:***@a:1,nats://b:***@c:2 now"),
        ('{"url":"tls://token@host"}', '{"url":"tls://***@host"}'),
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("mail a@b.c", "mail a@b.c"),
    ],
)
def test_passwords_and_tokens_in_urls_are_hidden(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_the_user_of_a_url_is_named_only_beside_a_password() -> None:
    """Alone it is a token."""
    assert user_of("nats://reader:x@host") == "reader"
    assert user_of("nats://token@host") == ""
    assert user_of("nats://host:4222") == ""
