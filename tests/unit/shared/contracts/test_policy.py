"""queues.yaml: what is read, and what is refused with which message."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shared.contracts.examples import EXAMPLES
from shared.contracts.policy import (
    CONFIG_MAP,
    CONFIG_NAMESPACE,
    QUEUES_KEY,
    PolicyError,
    QueuePolicy,
    QueueRule,
    read_queues,
)
from shared.model.objects import ConfigMap

ROOT = Path(__file__).resolve().parents[4]


def test_omitted_fields_have_defaults_and_amounts_are_thousandths_and_bytes() -> None:
    policy = read_queues("queues: [{name: a, guaranteed: {gpus: 0.5, cpu: 1500m, memory: 1Gi}}]")
    (queue,) = policy.queues
    assert queue.guaranteed.vector() == (500, 1500, 1 << 30)
    assert queue.limit.vector() == (None, None, None)
    assert (queue.weight, queue.priority, queue.parent, policy.within_guarantee_from) == (1, 0, "", None)


def test_an_empty_text_has_no_queues() -> None:
    assert read_queues(" \n") == QueuePolicy()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("queues: 7", "Expected `array`"),
        ("queues: [", "queues.yaml"),
        ("queues: [{name: a, limits: {gpus: 1}}]", "unknown field `limits`"),
        ("queues: [{name: a, later: 1}]", "after a rollback it may be one of the later version: take it out"),
        ("queues: [{weight: 1}]", "missing required field `name`"),
        ("queues: [{name: a}, {name: a}]", "two queues are named 'a'"),
        ("queues: [{name: a b}]", "a name is as the value of a label"),
        ("queues: [{name: a, parent: b}]", "there is no queue 'b' that could be its parent"),
        ("queues: [{name: a, parent: b}, {name: b, parent: a}]", "is its own ancestor"),
        ("queues: [{name: a, weight: -1}]", "queue a: weight is -1"),
        ("queues: [{name: a, weight: .nan}]", "queue a: weight is nan"),
        ("queues: [{name: a, reserve_after_s: -1}]", "queue a: reserve_after_s is -1"),
        ("queues: [{name: a, limit: {gpus: -1}}]", "queue a: gpus is -1"),
        ("queues: [{name: a, limit: {gpus: .inf}}]", "queue a: gpus is inf"),
        ("queues: [{name: a, limit: {memory: 1 GiB}}]", "queue a: '1 GiB' is not a Kubernetes quantity"),
        ("queues: [{name: a, limit: {cpu: '-1'}}]", "queue a: cpu and memory cannot be negative"),
        (
            "queues: [{name: a, guaranteed: {gpus: 2}, limit: {gpus: 1}}]",
            "queue a: more gpus are guaranteed than its limit allows",
        ),
        ("default: {guaranteed: {cpu: 2}, limit: {cpu: 1}}", "default: more cpu are guaranteed"),
    ],
)
def test_an_invalid_option_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(PolicyError) as error:
        read_queues(text)
    assert said in str(error.value)


def test_the_example_of_the_manifests_and_the_golden_one_are_valid() -> None:
    example = msgspec.convert(msgspec.yaml.decode((ROOT / "k8s/examples/kerf-policy.yaml").read_bytes()), ConfigMap)
    assert (example.metadata.namespace, example.metadata.name) == (CONFIG_NAMESPACE, CONFIG_MAP)
    assert [q.name for q in read_queues(example.data[QUEUES_KEY]).queues] == [
        "research",
        "vision",
        "language",
        "serving",
    ]
    golden = msgspec.json.encode(EXAMPLES["QueuePolicy"]).decode()
    assert read_queues(golden) == EXAMPLES["QueuePolicy"]


def test_the_page_says_since_when_each_field_is_known() -> None:
    """By which a text is made ready for a rollback."""
    page = (ROOT / "docs" / "install.md").read_text()
    table = page[page.index("| since |") : page.index("\n\n", page.index("| since |"))]
    for kind in (QueuePolicy, QueueRule):
        assert [name for name in kind.__struct_fields__ if f"`{name}`" not in table] == []
