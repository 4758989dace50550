"""Files compressed with gzip or zstd, unpacked as they are read and only so far.

A decompression bomb is a small file that unpacks to an enormous one; so what a file unpacks to is
bounded by its own size. Arrow's own codecs are used. They hold one window, of at most 128 MiB.
"""

import io
from pathlib import Path
from typing import BinaryIO, cast

from training.data.faults import DataError
from training.data.files.kinds import NUM_MAGIC_BYTES, find_compression

MAX_EXPANSION = 200
"""How many times its own size a file may unpack to."""
FREE_BYTES = 1 << 30
"""A file may unpack to so much in any case."""
_BUFFER_BYTES = 1 << 18


class PackedFile(io.RawIOBase):
    """What a compressed file unpacks to. Raises `DataError` for one that cannot be unpacked."""

    def __init__(self, path: Path, name: str, compression: str) -> None:
        import pyarrow as pa  # slow to import; most files are not compressed

        self._name = name
        self._compression = compression
        self._max_bytes = max(FREE_BYTES, MAX_EXPANSION * path.stat().st_size)
        self._num_bytes = 0
        self._packed = pa.OSFile(str(path), "rb")
        self._unpacked = pa.CompressedInputStream(self._packed, compression)

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]
        """Unpack more."""
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
        """Bytes of the compressed file that have been read."""
        return int(self._packed.tell())

    def close(self) -> None:
        """Close the compressed file as well."""
        if not self.closed:
            self._packed.close()
        super().close()


def open_unpacked(path: Path, name: str) -> BinaryIO:
    """Open a file for reading, of a compressed one what it unpacks to."""
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
    """Bytes of the file on disk that have been read."""
    raw = getattr(file, "raw", None)
    return raw.count_packed() if isinstance(raw, PackedFile) else file.tell()
