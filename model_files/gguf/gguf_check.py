"""Comparison of a GGUF file with the safetensors files that it was made from."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from model_files.weight_headers import TensorHeader, name_some, read_weight_headers
from system.library_errors import translate_library_errors

_CHUNK_ELEMENTS = 16 << 20
_ROWS_MAY_DIFFER = ("token_embd.weight", "output.weight")  # converters cut unused tokens off
_NOT_KEPT = ("rotary_emb.inv_freq", "lm_head.weight")  # computed again; may equal the embedding
_MAY_BE_TRANSPOSED = ("c_attn.weight", "c_fc.weight", "c_proj.weight")  # GPT-2's Conv1D
_SUFFIXES = (".weight", ".bias")
_ADVICE = "install releases of llama.cpp and of the Python package gguf that fit each other"


class GgufFigures(NamedTuple):
    """What a GGUF file has, and how many of its tensors were compared by name and shape."""

    architecture: str
    num_tensors: int
    num_parameters: int
    num_compared: int


def check_gguf(path: Path, directory: Path) -> GgufFigures:
    """Read a GGUF file back, and compare its tensors with those of the model directory.

    Every tensor of the directory that the package `gguf` has a name for must be in the file with
    the same shape, and every value must be finite after dequantisation. Raises `ValueError` that
    names the first tensor at fault, and `LibraryError` for a file that cannot be read.
    """
    reader = _open(path)
    found = {tensor.name: _reverse(tensor.shape) for tensor in reader.tensors}
    architecture = str(_read(reader, "general.architecture"))
    num_blocks = int(_read(reader, f"{architecture}.block_count"))
    expected = _rename(read_weight_headers(directory), architecture, num_blocks)
    for name, shapes in expected.items():
        wanted = " or ".join(map(str, shapes))
        if name not in found:
            raise ValueError(f"{path.name} has no tensor {name!r}, expected one of shape {wanted}")
        if not any(_are_equal(name, found[name], shape) for shape in shapes):
            raise ValueError(
                f"{path.name}: {name!r} has the shape {found[name]}, expected {wanted}"
            )
    if not expected:
        raise ValueError(f"{path.name} has no tensor of the model, only {name_some(found)}")
    for tensor in reader.tensors:
        _check_finite(path, tensor)
    num_parameters = sum(math.prod(shape) for shape in found.values())
    return GgufFigures(architecture, len(found), num_parameters, len(expected))


def _open(path: Path) -> Any:
    with translate_library_errors(f"{path.name} cannot be read back", _ADVICE):
        from gguf import GGUFReader

        return GGUFReader(path)


def _read(reader: Any, key: str) -> Any:
    with translate_library_errors(f"{key!r} of the GGUF file cannot be read", _ADVICE):
        field = reader.get_field(key)
        value = None if field is None else field.contents()
    if value is None:
        raise ValueError(f"a GGUF file without {key!r} is not complete")
    return value


def _rename(
    headers: Mapping[str, TensorHeader], architecture: str, num_blocks: int
) -> dict[str, list[tuple[int, ...]]]:
    """Return the possible shapes of the tensors that `gguf` names one for one, by that name."""
    import gguf

    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    if architecture not in kinds:  # newer than the installed package
        raise ValueError(
            f"the installed package gguf does not know the architecture {architecture!r}, so the "
            "file cannot be verified: install a newer one"
        )
    with translate_library_errors(f"gguf has no tensor names for {architecture!r}", _ADVICE):
        names = gguf.get_tensor_name_map(kinds[architecture], num_blocks)
    renamed = {
        names.get_name(name, try_suffixes=_SUFFIXES): _list_shapes(name, header.shape)
        for name, header in headers.items()
        if not name.endswith(_NOT_KEPT)
    }
    return {name: shapes for name, shapes in renamed.items() if name is not None}


def _list_shapes(name: str, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [shape, shape[::-1]] if name.endswith(_MAY_BE_TRANSPOSED) else [shape]


def _reverse(shape: Any) -> tuple[int, ...]:
    """Return the order of PyTorch: GGUF names the innermost dimension first."""
    return tuple(int(size) for size in reversed(shape))


def _are_equal(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    kept, wanted = ([size for size in shape if size != 1] for shape in (found, expected))
    start = 1 if name in _ROWS_MAY_DIFFER else 0
    return kept[start:] == wanted[start:]


def _check_finite(path: Path, tensor: Any) -> None:
    from gguf.quants import dequantize

    if not np.issubdtype(tensor.data.dtype, np.floating) and tensor.data.dtype != np.uint8:
        return  # integers
    rows = tensor.data.reshape(-1, tensor.data.shape[-1])
    step = max(1, _CHUNK_ELEMENTS // max(1, int(tensor.shape[0])))
    failed = f"{path.name}: {tensor.name!r} cannot be dequantised"
    for start in range(0, len(rows), step):
        with translate_library_errors(failed, _ADVICE):
            values = dequantize(rows[start : start + step], tensor.tensor_type)
        if not np.isfinite(values).all():
            raise ValueError(f"{path.name}: {tensor.name!r} has values that are not finite")
