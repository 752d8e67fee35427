"""JSON Patch (RFC 6902) between two JSON values: as small as is cheap to find."""

from __future__ import annotations

from typing import Any

Operation = dict[str, Any]


def difference(old: Any, new: Any, path: str = "") -> list[Operation]:
    """The operations that make `new` of `old`. Lists are compared by index; what is longer is appended, what is shorter
    is replaced whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        found: list[Operation] = []
        for key in old:
            if key not in new:
                found.append({"op": "remove", "path": f"{path}/{escape(key)}"})
        for key, value in new.items():
            if key not in old:
                found.append({"op": "add", "path": f"{path}/{escape(key)}", "value": value})
            elif old[key] is not value:
                found += difference(old[key], value, f"{path}/{escape(key)}")
        return found
    if isinstance(old, list) and isinstance(new, list) and len(new) >= len(old):
        found = []
        for index, value in enumerate(old):
            if value is not new[index]:
                found += difference(value, new[index], f"{path}/{index}")
        return found + [{"op": "add", "path": f"{path}/-", "value": value} for value in new[len(old) :]]
    return [] if old == new else [{"op": "replace", "path": path, "value": new}]


def escape(key: str) -> str:
    """A key as a step of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def apply(document: Any, operations: list[Operation]) -> Any:
    """The patched document; the original stays as it is. Only what `difference` writes: add, remove, replace.

    Raises KeyError or IndexError where a path does not exist.
    """
    for operation in operations:
        steps = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
        document = _at(document, steps, operation)
    return document


def _at(node: Any, steps: list[str], operation: Operation) -> Any:
    if not steps:
        return operation["value"]
    step, rest = steps[0], steps[1:]
    if isinstance(node, list):
        if step == "-":
            return [*node, operation["value"]]
        place = int(step)
        return [*node[:place], _at(node[place], rest, operation), *node[place + 1 :]]
    if rest:
        return node | {step: _at(node[step], rest, operation)}
    if operation["op"] == "remove":
        return {key: value for key, value in node.items() if key != step}
    return node | {step: operation["value"]}
