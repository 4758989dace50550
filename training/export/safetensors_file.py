"""Streaming writer of safetensors files: only the current chunks are in memory.

The format: eight bytes with the length of the header, the header as JSON (name, dtype, shape and
offsets of every tensor), then the tensors' bytes without gaps.
"""

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

_DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT = 8


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file: its name, dtype and shape."""

    name: str
    dtype: torch.dtype
    shape: torch.Size

    @property
    def size_bytes(self) -> int:
        """Total size of its elements."""
        return self.shape.numel() * self.dtype.itemsize


class SafetensorsFile:
    """A file being written, tensor by tensor in the order of its entries.

    A thread hashes and writes one chunk while the caller prepares the next: a chunk may be
    overwritten once the next chunk has been appended.
    """

    def __init__(self, path: Path, entries: Sequence[TensorEntry]) -> None:
        self._file = path.open("wb", buffering=0)
        self._digest = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="safetensors")
        self._left = sum(entry.size_bytes for entry in entries)
        self._writing = self._thread.submit(self._write, _render_header(entries))

    def __enter__(self) -> "SafetensorsFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.shutdown()
        self._file.close()

    def append(self, chunk: torch.Tensor) -> None:
        """Append the next elements, contiguous; raises `OSError` if the previous write failed."""
        self._writing.result()
        content: Any = chunk.flatten().view(torch.uint8).numpy()
        self._left -= content.nbytes
        assert self._left >= 0, "more than the entries have room for"
        self._writing = self._thread.submit(self._write, content.data)

    def finish(self) -> dict[str, int | str]:
        """Wait for the last write; returns size and SHA-256 in the format of a manifest."""
        self._writing.result()
        assert self._left == 0, f"{self._left} bytes are missing"
        return {"size_bytes": self._file.tell(), "sha256": self._digest.hexdigest()}

    def _write(self, content: bytes | memoryview) -> None:
        self._digest.update(content)
        rest = memoryview(content)
        while rest:
            rest = rest[self._file.write(rest) :]


def _render_header(entries: Sequence[TensorEntry]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in entries:
        end = offset + entry.size_bytes
        header[entry.name] = {
            "dtype": _DTYPE_NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
