"""`ArchiveBox`: a box that sends and receives files as tar archives, which the daemon forwards."""

from __future__ import annotations

from typing import IO, NamedTuple, Protocol

from agentloop.boxes.interface.box import Box


class SentArchive(NamedTuple):
    """The archive that `send_archive` wrote. It is untrusted; read it with `agentloop.boxes.copies.unpack`."""

    is_file: bool
    """Whether the source is one file, not a directory."""
    below: str = ""
    """First part of all names in the archive, to be removed."""


class ArchiveBox(Box, Protocol):
    """A box that unpacks and packs archives itself, so that no path in them can lead out of it."""

    async def receive_archive(self, stream: IO[bytes], folder: str) -> None:
        """Unpack a tar archive into a directory of the box, which is created if missing. Raises `BoxError`."""
        ...

    async def send_archive(self, source: str, stream: IO[bytes], max_bytes: int) -> SentArchive:
        """Write a file, or the content of a directory, as a tar archive. Raises `BoxError` if there is no `source`.

        This method or the reader of the archive refuses more than `max_bytes`.
        """
        ...
