"""llama.cpp's converter and quantiser on this machine, and the types that each of them writes."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

CONVERTER_NAME, QUANTISER_NAME = "convert_hf_to_gguf.py", "llama-quantize"
CONVERTER_TYPES = {"f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5}
"""Types that the converter writes, with the bits per weight of a model."""
QUANTISER_TYPES = {
    "q6_k": 6.57,
    "q5_k_m": 5.71,
    "q5_k_s": 5.58,
    "q5_0": 5.58,
    "q4_k_m": 4.9,
    "q4_k_s": 4.68,
    "q4_0": 4.68,
    "q3_k_m": 4.0,
    "q2_k": 3.2,
}
"""Types that the quantiser writes, with the bits per weight of a model of 8 billion weights.

Source: tools/quantize/README.md of llama.cpp. Some tensors have more bits, above all embeddings.
"""
_PACKAGES = ("gguf", "sentencepiece")
_BUILD_FOLDERS = ("", "build/bin", "bin")
_SOURCE = "https://github.com/ggml-org/llama.cpp"


class GgufConversionError(RuntimeError):
    """A program of llama.cpp did not convert the model."""


class LlamaCppTools(NamedTuple):
    """The programs of llama.cpp; `quantiser` is needed for `QUANTISER_TYPES` only."""

    converter: Path
    quantiser: Path | None


def find_tools(folder: Path | None, quantization: str | None) -> LlamaCppTools:
    """Find what a conversion needs, in llama.cpp's folder or else on PATH.

    `quantization` is one of the types above, or None for the type of the model's weights. Raises
    `ValueError` that names what is missing and how it is installed.
    """
    known = (*CONVERTER_TYPES, *QUANTISER_TYPES)
    if quantization is not None and quantization not in known:
        raise ValueError(f"--quantize {quantization!r}: expected one of {', '.join(known)}")
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise ValueError(
            f"GGUF needs the Python package {' and '.join(missing)}, not installed here: "
            "pip install 'tuneserve[gguf]'"
        )
    if folder is not None and not folder.is_dir():
        raise ValueError(f"--llama-cpp {str(folder)!r} is not a folder; expected llama.cpp's own")
    converter = _find(CONVERTER_NAME, folder)
    if converter is None:
        raise ValueError(
            f"llama.cpp's converter {CONVERTER_NAME} is not {_describe(folder)}: clone {_SOURCE} "
            "and pass its folder with --llama-cpp or TUNESERVE_LLAMA_CPP"
        )
    quantiser = _find(QUANTISER_NAME, folder)
    if quantiser is None and quantization in QUANTISER_TYPES:
        raise ValueError(
            f"--quantize {quantization} needs llama.cpp's program {QUANTISER_NAME}, which is not "
            f"{_describe(folder)}: build it with 'cmake -B build && cmake --build build --target "
            f"{QUANTISER_NAME}' in llama.cpp's folder, or use one of {', '.join(CONVERTER_TYPES)}, "
            "which need the converter only"
        )
    return LlamaCppTools(converter, quantiser)


def _find(name: str, folder: Path | None) -> Path | None:
    for path in _list_candidates(name, folder):
        if path.is_file():
            return path.resolve()
    return None


def _list_candidates(name: str, folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield from (folder / place / name for place in _BUILD_FOLDERS)
    if found := shutil.which(name):
        yield Path(found)


def _describe(folder: Path | None) -> str:
    return "on PATH" if folder is None else f"in {str(folder)!r} or on PATH"
