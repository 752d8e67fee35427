"""What is no review that can be answered: refused, and no error of the service."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.admission import webhook
from services.admission.messages import Policy, Refused
from tests.unit.services.admission.pods import container, pod
from tests.unit.services.admission.test_service import asked


def body(manifest: Any) -> bytes:
    return msgspec.json.encode(asked(manifest))


def nested(levels: int) -> bytes:
    """A GPU pod with an object in it that is nested so deep, and with a null, for which it is copied level by level."""
    manifest = pod(container(gpu=1), nodeSelector={"a": None}, x="RAW")
    return body(manifest).replace(b'"RAW"', b'{"a":' * levels + b"1" + b"}" * levels)


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"\xff", body(pod()).replace(b"train-0", b"\xff\xfe"), nested(100_000)],
    ids=["empty", "cut", "bytes", "not-utf-8", "nested"],
)
def test_what_is_no_json_is_malformed(payload: bytes) -> None:
    with pytest.raises(webhook.Malformed, match="no AdmissionReview"):
        webhook.read(payload)


def test_a_pod_that_is_nested_deeper_than_it_can_be_read_is_refused() -> None:
    decided, payload = webhook.answer(webhook.read(nested(700)), Policy())
    assert isinstance(decided, Refused)
    assert decided.code == "malformed"
    response = msgspec.json.decode(payload)["response"]
    assert (response["uid"], response["allowed"]) == ("r1", False)


def test_a_pod_that_is_nested_less_deep_is_answered() -> None:
    decided, _ = webhook.answer(webhook.read(nested(50)), Policy())
    assert not isinstance(decided, Refused)
