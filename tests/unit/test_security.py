"""docs/security.md's table of rights is what the manifests grant."""

from __future__ import annotations

from pathlib import Path

from tests.support import manifests

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def rights() -> list[str]:
    """A line of the table for each rule of each role that the manifests bind to an account."""
    found = []
    for role in manifests.load("1"):
        if role["kind"] not in ("Role", "ClusterRole"):
            continue
        where = role["metadata"].get("namespace", "the cluster")
        for rule in role["rules"]:
            things = [f"{group}/{name}" if group else name for group in rule["apiGroups"] for name in rule["resources"]]
            only = f" {', '.join(rule['resourceNames'])}" if "resourceNames" in rule else ""
            line = f"| {role['metadata']['name']} | {where} | {' '.join(rule['verbs'])} | {', '.join(things)}{only} |"
            found.append(line)
    return found


def test_every_right_is_in_the_table_and_no_other() -> None:
    lines = PAGE.read_text().splitlines()
    head = lines.index("| role | in | verbs | resources |")
    table = lines[head + 2 : lines.index("", head)]
    assert table == rights(), "\n".join(rights())
