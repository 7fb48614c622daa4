"""The route of downloads: a zip archive that is written while the browser reads it.

The archive is never complete in memory or on disk. Its files are stored, not compressed, because
weights do not shrink.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from ..state.downloads import use_ticket
from ..words.compare_and_runs import TICKET_EXPIRED

ROUTE = "/downloads/{ticket}"
CHUNK = 2**20  # bytes read at once


async def answer_download(request: Request) -> Response:
    """Answer with the archive of a ticket, or 404."""
    download = use_ticket(request.path_params["ticket"])
    if download is None:
        return PlainTextResponse(TICKET_EXPIRED, 404)
    return StreamingResponse(
        zip_stream(download.files),
        media_type="application/zip",
        headers={
            "content-disposition": f'attachment; filename="{download.file_name}"',
            "cache-control": "no-store",
        },
    )


def zip_stream(files: Mapping[str, Path]) -> Iterator[bytes]:
    """Yield a zip archive in pieces of about CHUNK. files: paths by their names in the archive."""
    written = _WrittenPieces()
    with ZipFile(written, "w", ZIP_STORED) as archive:
        for name, path in files.items():
            # the size of the file, by which ZipFile selects zip64 for more than 2 GiB
            entry = ZipInfo.from_file(path, name, strict_timestamps=False)
            with path.open("rb") as source, archive.open(entry, "w") as target:
                while chunk := source.read(CHUNK):
                    target.write(chunk)
                    yield written.drain()
    yield written.drain()


class _WrittenPieces:
    """A file that can only be written, and holds the bytes since the last `drain`."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def drain(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)
