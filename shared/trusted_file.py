"""The CAs of a file that is replaced when they are renewed, for connections that are opened later."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable


class TrustedFile:
    """A CA that comes to the file later is trusted too, be it before or after servers have certificates of it. None is
    trusted less."""

    def __init__(self, tls: ssl.SSLContext, file: str, unreadable: Callable[[OSError], None]) -> None:
        """`unreadable` is called when the file cannot be read, once until it can be again."""
        self._tls, self._file, self._report = tls, file, unreadable
        self._read_of = 0
        """The file's time of change when it was read."""
        self._unreadable = False

    def read(self) -> None:
        """Reads the file if it has changed. Where it cannot be read, the CAs that were read before stay."""
        try:
            if (changed := os.stat(self._file).st_mtime_ns) != self._read_of:
                self._tls.load_verify_locations(cafile=self._file)
                self._read_of = changed
        except OSError as error:
            if not self._unreadable:
                self._report(error)
            self._unreadable = True
        else:
            self._unreadable = False
