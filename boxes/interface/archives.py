"""`ArchiveBox`: a box whose files go in and out as tar archives, as the daemon passes them on."""

from __future__ import annotations

from typing import IO, NamedTuple, Protocol

from agentloop.boxes.interface.box import Box


class SentArchive(NamedTuple):
    """What `send_archive` has written. Nothing in it is trusted: `agentloop.boxes.copies.unpack` reads it."""

    is_file: bool
    """Whether the source is one file, and no directory."""
    below: str = ""
    """First part of all names in the archive, which is not wanted."""


class ArchiveBox(Box, Protocol):
    """A box that unpacks and packs archives itself, so that nothing of them can lead out of it."""

    async def receive_archive(self, stream: IO[bytes], folder: str) -> None:
        """Unpack a tar archive into a directory of the box, which is made. Raises `BoxError`."""
        ...

    async def send_archive(self, source: str, stream: IO[bytes], max_bytes: int) -> SentArchive:
        """Write a file, or the content of a directory, as a tar archive. Raises `BoxError` if there is no `source`.

        What is larger than `max_bytes` is refused here or by the reader of the archive.
        """
        ...
