"""What the documentation site has beside `docs/`: README, CONTRIBUTING and the list of decisions (hooks of mkdocs).

Links that lead out of `docs/` lead to these pages, or become the plain path of a file of the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DECISIONS = "decisions/index.md"
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "docs/decisions": DECISIONS}
"""Paths in the repository, and the pages that stand for them."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"(```.*?```)", re.DOTALL)


def on_config(config: Any) -> Any:
    """Adds the decisions to the navigation."""
    decisions = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    for entry in config["nav"]:
        if "Decisions" in entry:
            entry["Decisions"] = [DECISIONS, *(f"decisions/{name}" for name in decisions)]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are not in `docs/`."""
    titles = {path.name: _title(path) for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))}
    pages = {
        "index.md": (ROOT / "README.md").read_text(),
        "contributing.md": (ROOT / "CONTRIBUTING.md").read_text(),
        DECISIONS: "# Decisions\n\n" + "".join(f"- [{title}]({name})\n" for name, title in titles.items()),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Makes the links of a page those of the site."""
    name = page.file.src_uri
    source = next((path for path, stands in PAGES.items() if stands == name and path.endswith(".md")), f"docs/{name}")
    parts = _CODE.split(markdown)
    return "".join(
        part if number % 2 else _LINK.sub(lambda link: _on_site(link, source, name), part)
        for number, part in enumerate(parts)
    )


def _on_site(link: re.Match[str], source: str, name: str) -> str:
    image, text, target, anchor = link[1], link[2], link[3], link[4] or ""
    if "://" in target:
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    page = PAGES.get(path) or (
        path.removeprefix("docs/") if path.startswith("docs/") and not (ROOT / path).is_dir() else ""
    )
    if page:
        return f"{image}[{text}]({posixpath.relpath(page, posixpath.dirname(name) or '.')}{anchor})"
    return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"


def _title(path: Path) -> str:
    return path.read_text().splitlines()[0].lstrip("# ")
