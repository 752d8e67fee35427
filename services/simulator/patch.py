"""Patches on plain JSON: merge patch, the part of strategic merge patch that we send, and JSON Patch from webhooks."""

from __future__ import annotations

import copy
from typing import Any

MERGE_KEYS = {"conditions": "type", "schedulingGates": "name", "taints": "key"}
"""Lists that a strategic merge patch merges by a key (Kubernetes' API types, patchMergeKey)."""


class PatchError(ValueError):
    """A patch that cannot be applied to this document."""


def merge(target: Any, patch: Any, *, strategic: bool = False) -> Any:
    """RFC 7396 (JSON Merge Patch); with `strategic`, lists of MERGE_KEYS are merged by their key. Nothing is changed in
    place."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif strategic and key in MERGE_KEYS and isinstance(value, list):
            result[key] = _merge_list(result.get(key) or [], value, MERGE_KEYS[key])
        else:
            result[key] = merge(result.get(key), value, strategic=strategic)
    return result


def _merge_list(target: list[Any], patch: list[Any], key: str) -> list[Any]:
    result = list(target)
    for item in patch:
        index = next((i for i, old in enumerate(result) if old.get(key) == item.get(key)), None)
        if index is None:
            result.append(item)
        else:
            result[index] = merge(result[index], item, strategic=True)
    return result


def json_patch(document: Any, operations: list[dict[str, Any]]) -> Any:
    """RFC 6902: add, remove, replace and test. Raises PatchError, and then applies no part of the patch."""
    root = {"": copy.deepcopy(document)}
    for operation in operations:
        kind, path = operation.get("op"), operation.get("path", "")
        if path and not path.startswith("/"):
            raise PatchError(f"{path!r} is no JSON pointer")
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")]
        parent: Any = root
        for part in way:
            parent = parent[_place(parent, part, path)]
        if kind == "add":
            _add(parent, last, path, operation.get("value"))
            continue
        place = _place(parent, last, path)
        if kind == "remove":
            del parent[place]
        elif kind == "replace":
            parent[place] = operation.get("value")
        elif kind != "test":
            raise PatchError(f"operation {kind!r} is not understood")
        elif parent[place] != operation.get("value"):
            raise PatchError(f"test failed at {path!r}")
    return root[""]


def _add(parent: Any, last: str, path: str, value: Any) -> None:
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        end = last == "-" or last == str(len(parent))
        parent.insert(len(parent) if end else _place(parent, last, path), value)
    else:
        raise PatchError(f"{path!r} leads into a {type(parent).__name__}")


def _place(parent: Any, part: str, path: str) -> Any:
    """The key or index of something that is there."""
    if isinstance(parent, dict) and part in parent:
        return part
    if isinstance(parent, list) and part.isdecimal() and int(part) < len(parent):
        return int(part)
    raise PatchError(f"{path!r}: there is no {part!r}")
