"""CDI specs in the runtime's directory: one file a device, there whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from services.node_agent.cdi import spec
from services.node_agent.cdi.spec import ContainerEdits

PREFIX = "kerf-slice"


class SpecDir:
    """A file is named for the pod's UID, its container and the device, so that it can be told whose it is.

    The directory is usually on tmpfs: what a reboot takes is written again when the container starts again.
    """

    def __init__(self, directory: Path, kind: str) -> None:
        self._dir, self._kind = directory, kind

    def write(self, names: Iterable[str], uid: str, container: str, edits: ContainerEdits) -> None:
        """Raises OSError."""
        self._dir.mkdir(parents=True, exist_ok=True)
        for name in names:
            path = self._dir / f"{_stem(uid, container)}-{name}.json"
            # Readers take no notice of a name that does not end in .json or .yaml.
            beside = path.with_suffix(".new")
            beside.write_bytes(spec.document(self._kind, name, edits))
            beside.replace(path)

    def keep_only(self, containers: Iterable[tuple[str, str]]) -> None:
        """Removes the specs of all containers but these, (uid, name)."""
        # A claim's device has dashes in its name, as containers have: the kept ones are told by how they begin.
        kept = tuple(f"{_stem(uid, container)}-" for uid, container in containers)
        for path in self._dir.glob(f"{PREFIX}-*"):
            if not path.name.startswith(kept):
                path.unlink(missing_ok=True)


def _stem(uid: str, container: str) -> str:
    """The entry of a ResourceClaim has slashes where a container's name has none."""
    return f"{PREFIX}-{uid}-{container.replace('/', '.')}"
