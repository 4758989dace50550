"""Conversion of the floating-point weights of a model directory to another dtype, file by file."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from model_files.json_files import find_object
from model_files.weight_headers import INDEX_NAME, read_weight_headers
from storage import durable
from system.library_errors import translate_library_errors
from training.export.safetensors_file import SafetensorsFile, TensorEntry
from training.model import DTYPES

_CHUNK_ELEMENTS = 8 << 20
_CONFIG_NAME = "config.json"
_DTYPE_KEYS = ("dtype", "torch_dtype")
_MAX_INDEX_BYTES = 100_000_000
_ADVICE = "export the model again without --dtype, or with another one"


def convert_weights(directory: Path, dtype_name: str) -> None:
    """Convert a model directory in place, and write its manifest again.

    `dtype_name` is a key of `DTYPES`. Tensors of integers and booleans are kept. config.json, which
    an adapter lacks, gets the new dtype, the index of several files the new size. Only chunks of a
    tensor are in memory. Raises `ValueError` for values that the dtype cannot represent, for
    quantised weights, and for a directory without safetensors files, and `LibraryError` for a file
    or a value that safetensors or torch cannot read or convert.
    """
    dtype = DTYPES[dtype_name]
    if (find_object(directory / _CONFIG_NAME) or {}).get("quantization_config"):
        raise ValueError(f"the weights of {directory.name!r} are quantised")
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{directory.name!r} has no safetensors files to convert")
    known = {}
    for path in files:
        known[path.name] = _convert_file(path, dtype)
    if (directory / _CONFIG_NAME).is_file():
        _write_config(directory / _CONFIG_NAME, dtype)
    _write_index_size(directory)
    durable.seal_directory(directory, known)


def _convert_file(path: Path, dtype: torch.dtype) -> dict[str, int | str]:
    converted = path.with_name(f".{path.name}.converted")
    with _open(path) as source:
        names = list(source.keys())
        entries = sorted(
            (_plan(_read(source, name), name, dtype) for name in names),
            key=lambda entry: -entry.dtype.itemsize,  # so that all tensors are aligned
        )
        with SafetensorsFile(converted, entries) as target:
            for entry in entries:
                for chunk in _convert(_read(source, entry.name), entry):
                    target.append(chunk)
            written = target.finish()
    os.replace(converted, path)
    return written


def _open(path: Path) -> Any:
    with translate_library_errors(f"{path.name} cannot be opened", _ADVICE):
        return safe_open(path, framework="pt")


def _read(source: Any, name: str) -> torch.Tensor:
    with translate_library_errors(f"{name!r} cannot be read", _ADVICE):
        tensor: torch.Tensor = source.get_tensor(name)
        return tensor


def _plan(tensor: torch.Tensor, name: str, dtype: torch.dtype) -> TensorEntry:
    if tensor.is_floating_point() and tensor.dtype.itemsize == 1:
        raise ValueError(f"{name!r} has the dtype {tensor.dtype}: it is quantised")
    return TensorEntry(name, dtype if tensor.is_floating_point() else tensor.dtype, tensor.shape)


def _convert(tensor: torch.Tensor, entry: TensorEntry) -> Iterator[torch.Tensor]:
    """Yield the tensor in chunks of the dtype of its entry; the file is mapped, not read whole."""
    values = tensor.flatten()
    for start in range(0, values.numel(), _CHUNK_ELEMENTS):
        chunk = values[start : start + _CHUNK_ELEMENTS]
        failed = f"{entry.name!r} of {chunk.dtype} cannot be converted to {entry.dtype}"
        with translate_library_errors(failed, _ADVICE):
            converted = chunk.to(entry.dtype)
        if entry.dtype.is_floating_point and not _keeps_finite(chunk, converted):
            largest = float(chunk[torch.isfinite(chunk)].abs().max())
            raise ValueError(
                f"{entry.name!r} has the value {largest:g}, too large for {entry.dtype} (at most "
                f"{torch.finfo(entry.dtype).max:g}); choose bf16 or fp32"
            )
        yield converted


def _keeps_finite(before: torch.Tensor, after: torch.Tensor) -> bool:
    return bool(torch.equal(torch.isfinite(before), torch.isfinite(after)))


def _write_config(path: Path, dtype: torch.dtype) -> None:
    config = find_object(path)
    if config is not None:
        name = str(dtype).removeprefix("torch.")
        changed = _replace_dtype(config, name)
        durable.write_json(path, changed if "torch_dtype" in config else {**changed, "dtype": name})


def _replace_dtype(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the settings with another dtype, also in those of a part such as 'text_config'."""
    return {
        key: _replace_dtype(value, name)
        if isinstance(value, dict)
        else (name if key in _DTYPE_KEYS and isinstance(value, str) else value)
        for key, value in config.items()
    }


def _write_index_size(directory: Path) -> None:
    """Write the number of bytes of all tensors into the index, if there is one."""
    index = find_object(directory / INDEX_NAME, _MAX_INDEX_BYTES)
    if index is None or "total_size" not in (metadata := index.get("metadata") or {}):
        return
    size = sum(header.size_bytes for header in read_weight_headers(directory).values())
    durable.write_json(
        directory / INDEX_NAME, {**index, "metadata": {**metadata, "total_size": size}}
    )
