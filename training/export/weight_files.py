"""Writing the weights of a checkpoint as safetensors files, with a check of their values.

One tensor at a time is copied from the mapped shards through a small buffer into the files, so
memory does not grow with the model.
"""

import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from storage import durable
from system.byte_progress import OnBytes
from training.export.plan import Export, convert, plan_exports, plan_files
from training.export.safetensors_file import SafetensorsFile, TensorEntry
from training.export.zero_shards import StoredTensor, StoredWeights

INDEX_NAME = "model.safetensors.index.json"
_CHUNK_BYTES = 16 << 20


@dataclass
class WrittenWeights:
    """The files that were written, and statistics of their values."""

    hashes: dict[str, dict[str, Any]] = field(default_factory=dict)  # of each file
    weight_map: dict[str, str] = field(default_factory=dict)  # file of each tensor
    num_parameters: int = 0
    total_bytes: int = 0
    non_finite: list[str] = field(default_factory=list)
    zero_parameters: set[str] = field(default_factory=set)  # the module's, all zero in the files
    vectors: set[str] = field(default_factory=set)  # these may be all zero, such as biases


def write_weights(
    weights: StoredWeights,
    model: Any,
    directory: Path,
    dtype: torch.dtype,
    shard_bytes: int,
    on_progress: OnBytes | None = None,
) -> WrittenWeights:
    """Write files of at most `shard_bytes`, or one tensor, and their index if there are several.

    `model` comes from `build_meta_model`; `on_progress` is called with the bytes written and the
    total bytes. Raises `ConsolidationError` if checkpoint and model do not match.
    """
    exports = plan_exports(weights, model, dtype)
    total_bytes = sum(entry.size_bytes for export in exports for entry in export.entries)
    written = WrittenWeights()
    reader = _Reader(model, directory)
    values: dict[str, _Values] = {}
    with ThreadPoolExecutor(1, thread_name_prefix="fsync") as disk:
        reaching_disk = []
        for name, content in plan_files(exports, shard_bytes):
            with SafetensorsFile(directory / name, [entry for _, entry in content]) as file:
                for export, entry in content:
                    seen = values[entry.name] = _Values()
                    for chunk in reader.read(export, entry):
                        seen.add(chunk)
                        file.append(chunk)
                        written.total_bytes += chunk.nbytes
                        if on_progress:
                            on_progress(written.total_bytes, total_bytes)
                written.hashes[name] = file.finish()
            written.weight_map.update({entry.name: name for _, entry in content})
            reaching_disk.append(disk.submit(durable.fsync_file, directory / name))
        for synced in reaching_disk:  # each file is synced while the next one is written
            synced.result()
    _record_values(written, exports, values)
    if len(written.hashes) > 1:
        _write_index(written, directory)
    return written


def _record_values(
    written: WrittenWeights, exports: list[Export], values: Mapping[str, "_Values"]
) -> None:
    nonzero: set[str] = set()
    for export in exports:
        for entry in export.entries:
            written.num_parameters += entry.shape.numel()
            if not values[entry.name].is_finite:
                written.non_finite.append(entry.name)
            if not values[entry.name].is_zero:
                nonzero.update(export.name_parts())
    for export in exports:
        written.zero_parameters.update(set(export.name_parts()) - nonzero)
        if all(len(source.shape) < 2 for source in export.sources.values()):
            written.vectors.update(export.name_parts())


class _Values:
    """Statistics of the floating-point values of one tensor, collected chunk by chunk."""

    def __init__(self) -> None:
        self.is_finite = True
        self._lowest, self._highest = math.inf, -math.inf

    def add(self, chunk: torch.Tensor) -> None:
        if chunk.dtype.is_floating_point:
            lowest, highest = (float(value) for value in torch.aminmax(chunk))
            self.is_finite &= math.isfinite(lowest) and math.isfinite(highest)  # NaN is in both
            self._lowest, self._highest = min(self._lowest, lowest), max(self._highest, highest)

    @property
    def is_zero(self) -> bool:
        return self.is_finite and self._lowest == self._highest == 0


class _Reader:
    """Reads the data to write in chunks from two alternating buffers.

    A chunk stays valid until the second chunk after it is read.
    """

    def __init__(self, model: Any, scratch: Path) -> None:
        self._model = model
        self._scratch = scratch
        self._buffers = cycle([torch.empty(_CHUNK_BYTES, dtype=torch.uint8) for _ in range(2)])
        self._export: Export | None = None  # the last converted export
        self._converted: dict[str, torch.Tensor] = {}

    def read(self, export: Export, entry: TensorEntry) -> Iterator[torch.Tensor]:
        source = self._find(export, entry)
        step = _CHUNK_BYTES // entry.dtype.itemsize
        for start in range(0, entry.shape.numel(), step):
            length = min(step, entry.shape.numel() - start)
            chunk = next(self._buffers)[: length * entry.dtype.itemsize].view(entry.dtype)
            source.copy_into(chunk, start)
            yield chunk

    def _find(self, export: Export, entry: TensorEntry) -> StoredTensor:
        if not export.converted_names:
            (source,) = export.sources.values()
            return source
        if export is not self._export:
            self._converted = {}  # release the previous export first
            converted = convert(self._model, self._read_whole(export))
            self._converted = {
                made.name: converted.pop(name)
                for name, made in zip(export.converted_names, export.entries, strict=True)
            }
            self._export = export
        tensor = self._converted.pop(entry.name)
        return StoredTensor(tensor.shape, (tensor.flatten(),))

    def _read_whole(self, export: Export) -> dict[str, torch.Tensor]:
        """Read the sources of a conversion into scratch files, not into memory."""
        tensors = {}
        for name, stored in export.sources.items():
            tensors[name] = _map_scratch(self._scratch, stored.shape, export.dtypes[name])
            stored.copy_into(tensors[name].view(-1))
        return tensors


def _map_scratch(folder: Path, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """Create a tensor backed by a temporary file, which is removed with the tensor."""
    size_bytes = max(1, shape.numel() * dtype.itemsize)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".scratch-") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)  # a full disk fails here, not later
        return torch.from_file(file.name, shared=True, size=shape.numel(), dtype=dtype).view(shape)


def _write_index(written: WrittenWeights, directory: Path) -> None:
    """Write the index from tensors to files, in transformers' format."""
    metadata = {"total_parameters": written.num_parameters, "total_size": written.total_bytes}
    index = {"metadata": metadata, "weight_map": dict(sorted(written.weight_map.items()))}
    durable.write_json(directory / INDEX_NAME, index)
