"""Copies the usage book while the service writes it: `python -m services.metrics.backup /data/usage.db COPY`.

To restore, stop the service and put the copy in the book's place. The book names the place in the event stream that it
reaches to; the service reads what came after it again, as far as the stream keeps it (seven days).
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import sys
from pathlib import Path


def copy_book(source: Path, target: Path) -> None:
    """Writes a consistent copy. Raises sqlite3.Error."""
    with (
        contextlib.closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as book,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        book.backup(copy)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m services.metrics.backup", description=__doc__)
    parser.add_argument("book", type=Path)
    parser.add_argument("copy", type=Path)
    args = parser.parse_args()
    if args.copy.exists():
        sys.exit(f"{args.copy} exists; name a file that does not")
    try:
        copy_book(args.book, args.copy)
    except sqlite3.Error as error:
        sys.exit(f"{args.book} cannot be copied to {args.copy}: {error}")


if __name__ == "__main__":
    main()
