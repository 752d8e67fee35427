"""The annotations of pods that take turns: what is read, and the sentences that refuse the rest."""

from __future__ import annotations

import pytest

from shared.model import names
from shared.model.life import UNTOLD, read_life
from shared.model.request import RequestError
from shared.model.turn_terms import HttpHook, SignalHook, TurnTerms, read_hook
from tests.support.build import pod


def test_vllms_endpoints_and_a_signal_are_read() -> None:
    assert read_hook("http://:8000/sleep?level=1") == HttpHook(
        sleep_port=8000, sleep_path="/sleep?level=1", wake_port=8000, wake_path="/wake_up"
    )
    assert read_hook("http://:8000/v1/off http://:8001/v1/on?fast=1") == HttpHook(
        sleep_port=8000, sleep_path="/v1/off", wake_port=8001, wake_path="/v1/on?fast=1"
    )
    assert read_hook("signal:SIGUSR1:/run/slept") == SignalHook(signal="SIGUSR1", file="/run/slept")


@pytest.mark.parametrize(
    "text",
    [
        "", "sleep", "http://:8000", "http://:8000/", "http://10.0.0.1:8000/sleep", "https://:8000/sleep",
        "http://:0/sleep", "http://:99999/sleep", "http://:x/sleep", "http://:8000/a http://:8000/b http://:8000/c",
        "http://:8000/a  http://:8000/b", "http://:8000/sl\neep", "http://:8000/sleep#x", "http://:8000/" + "x" * 600,
        "signal:SIGKILL:/x", "signal:SIGUSR1:x", "signal:SIGUSR1:", "signal:SIGUSR1:/a b",
        "signal:SIGUSR1:/" + "x" * 256,
    ],
)  # fmt: skip
def test_a_hook_that_cannot_be_called_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(RequestError, match="suspend-hook") as refused:
        read_hook(text)
    assert "http://:8000/sleep?level=1" in str(refused.value)
    assert "signal:SIGUSR1:/path/in/container" in str(refused.value)


def test_what_a_node_has_to_know_is_read_from_the_pod() -> None:
    assert read_life(pod("p")) == UNTOLD
    told = pod(
        "p",
        annotations={names.ANNOTATION_TURNS: "allowed", names.ANNOTATION_SUSPEND_HOOK: "signal:SIGUSR1:/run/slept"},
    )
    assert read_life(told).terms == TurnTerms(rehearse=True, hook=SignalHook(signal="SIGUSR1", file="/run/slept"))


def test_an_annotation_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(RequestError, match=names.ANNOTATION_SUSPEND_HOOK):
        read_life(pod("p", annotations={names.ANNOTATION_SUSPEND_HOOK: "sleep"}))
