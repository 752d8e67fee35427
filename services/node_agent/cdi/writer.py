"""Writes CDI specs into the runtime's directory: one file per device, written atomically."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from services.node_agent.cdi import spec
from services.node_agent.cdi.spec import ContainerEdits

PREFIX = "kerf-slice"
_WITHDRAWN = ".off"
"""What the name of a spec ends in that the runtime is not to use: it reads files that end in .json or .yaml."""


class SpecDir:
    """The directory of CDI specs. A file's name contains the pod's UID, its container and the device.

    The directory is usually on tmpfs: after a reboot a spec is written again when its container starts again.
    """

    def __init__(self, directory: Path, kind: str) -> None:
        self._dir, self._kind = directory, kind

    def write(self, names: Iterable[str], uid: str, container: str, edits: ContainerEdits) -> None:
        """Writes one spec for each device name. Raises OSError."""
        self._dir.mkdir(parents=True, exist_ok=True)
        for name in names:
            path = self._dir / f"{_stem(uid, container)}-{name}.json"
            # Runtimes ignore files whose names do not end in .json or .yaml.
            temporary = path.with_suffix(".new")
            temporary.write_bytes(spec.document(self._kind, name, edits))
            temporary.replace(path)
            path.with_suffix(_WITHDRAWN).unlink(missing_ok=True)

    def withdraw(self, containers: Iterable[tuple[str, str]]) -> None:
        """Keeps the runtime from starting these containers, by pod UID and name, until their specs are written again.

        The kubelet asks before each start, but not after it was started again until the agent has registered.
        """
        found = _prefixes(containers)
        for path in self._dir.glob(f"{PREFIX}-*.json") if found else ():
            if path.name.startswith(found):
                path.replace(path.with_suffix(_WITHDRAWN))

    def keep_only(self, containers: Iterable[tuple[str, str]]) -> None:
        """Removes the specs of all containers except these (pod UID, container) pairs."""
        kept = _prefixes(containers)
        for path in self._dir.glob(f"{PREFIX}-*"):
            if not path.name.startswith(kept):
                path.unlink(missing_ok=True)


def spec_files(directory: Path) -> list[str]:
    """The names of the specs there, withdrawn ones too."""
    return [path.name for end in (".json", _WITHDRAWN) for path in directory.glob(f"{PREFIX}-*{end}")]


def is_of_pod(file: str, uid: str) -> bool:
    """Whether a spec of this name is a pod's."""
    return file.startswith(_stem(uid, ""))


def _prefixes(containers: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Of the names of these containers' specs. A claim's device name contains dashes, as container names do."""
    return tuple(f"{_stem(uid, container)}-" for uid, container in containers)


def _stem(uid: str, container: str) -> str:
    """The start of a file name. The entry of a ResourceClaim contains slashes, which a file name must not."""
    return f"{PREFIX}-{uid}-{container.replace('/', '.')}"
