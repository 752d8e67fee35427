"""What a mutant is."""

from __future__ import annotations

from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]


class Mutant(msgspec.Struct, frozen=True):
    """A weakening: in `file` the text `old`, which stands there exactly once, becomes `new`."""

    name: str
    """Short and unique, e.g. "append-without-fence"."""
    what: str
    """What the weakened code does, as a sentence without a full stop: "an append does not name the leader's term"."""
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """pytest node ids. At least one of them must fail; all of them pass on the code as it is."""
    survives: str = ""
    """Why no test can notice it, if none can: another guard behind it, which has a mutant of its own."""

    def problem(self, root: Path = ROOT) -> str:
        """Why this mutant cannot be tried, e.g. because the code has moved on; empty when it can."""
        path = root / self.file
        if not path.is_file():
            return f"{self.name}: there is no file {self.file}"
        times = path.read_text().count(self.old)
        if times != 1:
            return (
                f"{self.name}: {self.file} has the text {times} times, and must have it once: {self.old.strip()[:100]}"
            )
        if self.new == self.old:
            return f"{self.name}: it changes nothing"
        if not self.tests:
            return f"{self.name}: it names no test"
        missing = [test for test in self.tests if not _exists(test, root)]
        return f"{self.name}: there is no {', '.join(missing)}" if missing else ""

    def apply(self, root: Path) -> None:
        path = root / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


def _exists(test: str, root: Path) -> bool:
    """Whether a test of that node id's file and function is there; which parameters it has only pytest knows."""
    file, _, name = test.partition("::")
    if not (root / file).exists():
        return False
    function = name.partition("[")[0].rpartition("::")[2]
    return not function or f"def {function}(" in (root / file).read_text()
