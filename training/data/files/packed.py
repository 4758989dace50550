"""Streaming decompression of gzip and zstd files, up to a limit.

A decompression bomb is a small file that decompresses to an enormous one, so the decompressed size
is limited by the size of the file. Arrow's codecs are used, which hold one window of at most
128 MiB in memory.
"""

import io
from pathlib import Path
from typing import BinaryIO, cast

from training.data.faults import DataError
from training.data.files.kinds import NUM_MAGIC_BYTES, find_compression

MAX_EXPANSION = 200
"""The largest ratio of the decompressed size to the size of a file."""
FREE_BYTES = 1 << 30
"""Decompressed size that is always allowed."""
_BUFFER_BYTES = 1 << 18


class PackedFile(io.RawIOBase):
    """The decompressed content of a file. Raises `DataError` if it cannot be decompressed."""

    def __init__(self, path: Path, name: str, compression: str) -> None:
        import pyarrow as pa  # slow to import; most files are not compressed

        self._name = name
        self._compression = compression
        self._max_bytes = max(FREE_BYTES, MAX_EXPANSION * path.stat().st_size)
        self._num_bytes = 0
        self._packed = pa.OSFile(str(path), "rb")
        self._unpacked = pa.CompressedInputStream(self._packed, compression)

    def readable(self) -> bool:
        """Return true: it can be read."""
        return True

    def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]
        """Decompress the next bytes into `buffer`, and return their number."""
        try:
            chunk = self._unpacked.read(len(buffer))
        except (OSError, ValueError) as exc:
            raise DataError(
                f"{self._name} cannot be unpacked ({self._compression}: {exc}); it seems cut off "
                "or damaged: compress the rows again"
            ) from exc
        self._num_bytes += len(chunk)
        if self._num_bytes > self._max_bytes:
            raise DataError(
                f"{self._name} unpacks to more than {self._max_bytes:,} bytes, which no file of "
                f"its size may (at most {MAX_EXPANSION} times its size, or {FREE_BYTES:,} bytes): "
                "unpack it, and use the result if it is what you expect"
            )
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def count_packed(self) -> int:
        """Return the bytes of the compressed file that have been read."""
        return int(self._packed.tell())

    def close(self) -> None:
        """Close this stream and the compressed file."""
        if not self.closed:
            self._packed.close()
        super().close()


def open_unpacked(path: Path, name: str) -> BinaryIO:
    """Open a file for reading, decompressed if it is compressed."""
    file = path.open("rb")
    compression = find_compression(file.read(NUM_MAGIC_BYTES))
    file.seek(0)
    if compression is None:
        return file
    file.close()
    return cast(
        BinaryIO, io.BufferedReader(PackedFile(path, name, compression), buffer_size=_BUFFER_BYTES)
    )


def find_position(file: BinaryIO) -> int:
    """Return the bytes of the file on disk that have been read."""
    raw = getattr(file, "raw", None)
    return raw.count_packed() if isinstance(raw, PackedFile) else file.tell()
