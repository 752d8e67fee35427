"""What a node has to know of a pod that may be suspended for another one's turn, from the pod's annotations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from shared.model import names
from shared.model.request import RequestError

HOOK_FORMS = (
    "write http://:8000/sleep?level=1 (a port and a path of the pod's own server, and if it does not wake up by "
    "/wake_up beside it, a blank and a second such address), or signal:SIGUSR1:/path/in/container (the file that says "
    "slept)"
)
_SIGNAL = re.compile(r"signal:(SIG(?:USR[12]|HUP|WINCH)):(/[^\s:]{1,255})")
_MOST = 512


class HttpHook(msgspec.Struct, frozen=True, kw_only=True, tag="http"):
    """POST to these; the paths with their queries."""

    sleep_port: int
    sleep_path: str
    wake_port: int
    wake_path: str


class SignalHook(msgspec.Struct, frozen=True, kw_only=True, tag="signal"):
    """The program sleeps at the signal and then creates the file; at the next signal it wakes up and removes it."""

    signal: str
    file: str


SuspendHook = HttpHook | SignalHook


class TurnTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    rehearse: bool = False
    """The pod allows turns: its node tries in its first minute whether it can be checkpointed."""
    hook: SuspendHook | None = None
    """How the program is told to give its GPU memory back by itself; None: the driver's checkpoint takes it."""


def read_turn_terms(notes: Mapping[str, str], *, allowed: bool) -> TurnTerms | None:
    """Returns None if no annotation says anything. Raises RequestError (bad-annotation)."""
    hook = notes.get(names.ANNOTATION_SUSPEND_HOOK)
    if not allowed and hook is None:
        return None
    return TurnTerms(rehearse=allowed, hook=None if hook is None else read_hook(hook))


def rehearsed(terms: TurnTerms | None, *, takes_turns: bool) -> TurnTerms | None:
    """Returns the terms of a pod: one that takes turns by its queue is rehearsed, too."""
    if not takes_turns or (terms is not None and terms.rehearse):
        return terms
    return msgspec.structs.replace(terms or TurnTerms(), rehearse=True)


def read_hook(text: str) -> SuspendHook:
    """Raises RequestError (bad-annotation), which says what to write."""
    found = _SIGNAL.fullmatch(text)
    if found is not None:
        return SignalHook(signal=found[1], file=found[2])
    words = text.split(" ")
    addresses = [_address(word) for word in words] if len(text) <= _MOST and len(words) <= 2 else [None]
    sleep, wake = addresses[0], addresses[-1]
    if sleep is None or wake is None:
        raise RequestError("bad-annotation", f"annotation {names.ANNOTATION_SUSPEND_HOOK} is {text!r}; {HOOK_FORMS}")
    if len(addresses) == 1:
        wake = sleep[0], f"{sleep[1].partition('?')[0].rpartition('/')[0]}/wake_up"
    return HttpHook(sleep_port=sleep[0], sleep_path=sleep[1], wake_port=wake[0], wake_path=wake[1])


def _address(word: str) -> tuple[int, str] | None:
    """The port and the path of an address without a host."""
    if not word.isascii() or not word.isprintable() or not word.startswith("http://:"):
        return None
    try:
        parts = urlsplit(word)
        port = parts.port
    except ValueError:
        return None
    if not port or parts.hostname or parts.fragment or len(parts.path) < 2:
        return None
    return port, f"{parts.path}?{parts.query}" if parts.query else parts.path
