"""Conversion of a model directory to a GGUF file by llama.cpp's programs, as subprocesses."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from model_files.cleaning import clean_directory
from model_files.gguf.llama_cpp_tools import CONVERTER_TYPES, GgufConversionError, LlamaCppTools
from model_files.gguf.pre_tokenizer import name_pre_tokenizer
from model_files.json_files import find_object
from model_files.tokenizer_checks import MAX_TOKENIZER_BYTES
from model_files.weight_headers import read_weight_headers

_RUN_CONVERTER = Path(__file__).with_name("run_converter.py")
_TYPES = {"BF16": "bf16", "F16": "f16", "F32": "f32"}
_NUM_SHOWN_LINES = 5


class ConvertedModel(NamedTuple):
    """The GGUF file, and the type of its weights."""

    path: Path
    quantization: str


def check_architecture(tools: LlamaCppTools, architecture: str) -> None:
    """Raise `ValueError` if the converter lists its architectures and not this one.

    `architecture` is the name in config.json, such as 'LlamaForCausalLM'.
    """
    command = [sys.executable, str(_RUN_CONVERTER), "", str(tools.converter)]
    listed = _run([*command, "--print-supported-models"])
    names = {line.split("- ")[-1].strip() for line in listed.splitlines() if "- " in line}
    if names and architecture not in names:
        raise ValueError(
            f"llama.cpp's converter does not know the architecture {architecture!r}: a newer "
            "llama.cpp may; without --format the model is exported as it is"
        )


def convert_to_gguf(
    tools: LlamaCppTools, directory: Path, target: Path, quantization: str | None
) -> ConvertedModel:
    """Write a model directory as `target`, with weights of a type of `llama_cpp_tools`.

    None is the type of most weights of the directory. The converter would run code that the
    directory names, so all such files and settings are removed from the directory first. Raises
    `GgufConversionError`, and `ValueError` for a directory without safetensors weights.
    """
    _remove_code(directory)
    own_type = _find_type(directory)
    name = quantization or own_type
    by_converter = name if name in CONVERTER_TYPES else own_type
    unquantised = target if name in CONVERTER_TYPES else target.with_name(f"{by_converter}.gguf")
    _run_converter(tools, directory, unquantised, by_converter)
    if unquantised != target:
        assert tools.quantiser is not None
        _run([str(tools.quantiser), str(unquantised), str(target), name.upper()])
        unquantised.unlink()
    return ConvertedModel(target, name)


def _remove_code(directory: Path) -> None:
    clean_directory(directory)
    for path in directory.rglob("*.py"):
        path.unlink()


def _find_type(directory: Path) -> str:
    sizes: Counter[str] = Counter()
    for header in read_weight_headers(directory).values():
        sizes[header.dtype] += header.size_bytes
    (dtype, _), *_ = sizes.most_common(1)
    return _TYPES.get(dtype, "f16")


def _run_converter(tools: LlamaCppTools, directory: Path, target: Path, outtype: str) -> None:
    tokenizer = find_object(directory / "tokenizer.json", MAX_TOKENIZER_BYTES) or {}
    pre_tokenizer = name_pre_tokenizer(tokenizer) or ""
    command = [sys.executable, str(_RUN_CONVERTER), pre_tokenizer, str(tools.converter)]
    _run([*command, str(directory), "--outfile", str(target), "--outtype", outtype])
    if not target.is_file():
        raise GgufConversionError(f"{tools.converter} ended without an error and wrote no file")


def _run(command: list[str]) -> str:
    """Run a program, and return its output; raise `GgufConversionError` with its last lines."""
    done = subprocess.run(  # noqa: S603 - the user's own programs
        command,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode:
        raise GgufConversionError(_explain(command, done.returncode, done.stdout))
    return done.stdout


def _explain(command: list[str], status: int, output: str) -> str:
    lines = output.strip().splitlines()[-_NUM_SHOWN_LINES:]
    if "BPE pre-tokenizer was not recognized" in output:
        return (
            "llama.cpp's converter does not know this model's tokenizer: it lists published "
            "tokenizers by a hash, and this vocabulary is its own. GGUF works with the unchanged "
            "tokenizer of a published model, and with own byte-level BPE tokenizers that split "
            "as GPT-2 does, with or without single digits"
        )
    program = next(part for part in command if not part.startswith(sys.executable))
    program = command[3] if program == str(_RUN_CONVERTER) else program
    return "\n".join([f"{program} failed with exit status {status}:", *lines])
