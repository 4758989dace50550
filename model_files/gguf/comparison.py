"""Comparison of a GGUF file in llama.cpp with the original model in transformers."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from model_files.loading import load_tokenizer
from model_files.weight_headers import read_weight_headers
from system.free_resources import measure_host_memory
from system.library_errors import translate_library_errors

TEXT = "The quick brown fox jumps over 13 lazy dogs.\n\nDoes it? Yes: naïve café, 2026!"
"""Words, digits, punctuation, an empty line and characters of two bytes."""

TOLERANCES = {
    "f32": 0.01,
    "f16": 0.02,
    "bf16": 0.05,
    "q8": 0.08,
    "q6": 0.15,
    "q5": 0.2,
    "q4": 0.3,
    "q3": 0.4,
    "q2": 0.6,
}
"""Largest relative error of the logits by the type of the weights, without what follows '_'.

Two to seven times the errors of the demonstration model; above ten times without quantisation.
"""

_BYTES_PER_PARAMETER = 4  # the original is computed in float32
_ADVICE = "install a newer {}, or uninstall llama-cpp-python to export without this comparison"


class GgufDifferenceError(ValueError):
    """llama.cpp computes something else from the GGUF file than transformers from the model."""


class GgufComparison(NamedTuple):
    """How far the two programs' logits of `TEXT` differ.

    `error` is the norm of the difference divided by that of the original's logits, both centred at
    each position. `greedy_share` is the share of positions with the same most probable token.
    """

    num_tokens: int
    error: float
    tolerance: float
    greedy_share: float


def explain_no_comparison(directory: Path) -> str | None:
    """Return why `compare_with_original` cannot run on this machine; None if it can."""
    if find_spec("llama_cpp") is None:
        return "llama-cpp-python is not installed"
    headers = read_weight_headers(directory).values()
    needed = sum(header.num_elements for header in headers) * _BYTES_PER_PARAMETER * 2
    if needed > (free := measure_host_memory().free):
        return f"it needs {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
    return None


def compare_with_original(path: Path, directory: Path, quantization: str) -> GgufComparison:
    """Compute the logits of `TEXT` with llama.cpp and with transformers in float32.

    Raises `GgufDifferenceError` if the tokens differ, if the error exceeds the tolerance of the
    quantisation, or if the next token differs although the original's lead is larger than the
    tolerance, and `LibraryError` if one of the two libraries fails.
    """
    token_ids = load_tokenizer(directory).encode(TEXT, add_special_tokens=False)
    found_ids, found = _compute_converted(path, token_ids)
    if found_ids != token_ids:
        raise GgufDifferenceError(
            f"{path.name}: llama.cpp splits {TEXT!r} into the tokens {found_ids}, transformers "
            f"into {token_ids}; the converter chose another tokenizer"
        )
    return _compare(path.name, found, _compute_original(directory, token_ids), quantization)


def _compute_converted(path: Path, token_ids: list[int]) -> tuple[list[int], Any]:
    """Return llama.cpp's tokens of `TEXT`, and its logits after `token_ids`."""
    advice = _ADVICE.format("llama-cpp-python")
    with translate_library_errors(f"llama-cpp-python cannot run {path.name}", advice):
        from llama_cpp import Llama

        model = Llama(str(path), n_ctx=len(token_ids) + 8, logits_all=True, verbose=False)
        try:
            found_ids = model.tokenize(TEXT.encode(), add_bos=False, special=False)
            model.eval(token_ids)
            return found_ids, np.array(model.scores[: len(token_ids)], dtype=np.float64)
        finally:
            model.close()


def _compute_original(directory: Path, token_ids: list[int]) -> Any:
    """Return the logits of the model directory, [tokens, vocabulary]."""
    failed = f"transformers cannot run the model {directory.name!r}"
    with translate_library_errors(failed, _ADVICE.format("transformers")):
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
        with torch.inference_mode():
            return model(torch.tensor([token_ids])).logits[0].double().numpy()


def _compare(name: str, found: Any, expected: Any, quantization: str) -> GgufComparison:
    width = min(found.shape[1], expected.shape[1])  # converters cut unused tokens off
    found, expected = (_centre(logits[:, :width]) for logits in (found, expected))
    tolerance = TOLERANCES[quantization.split("_")[0]]
    error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    is_same = found.argmax(axis=1) == expected.argmax(axis=1)
    if not error <= tolerance:  # also for NaN
        raise GgufDifferenceError(
            f"{name}: the logits of llama.cpp differ by {error:.3f} of their size from those of "
            f"transformers, expected at most {tolerance} for {quantization}"
        )
    second, first = np.sort(expected[-1])[-2:]
    spread = float(np.sqrt(np.mean(expected[-1] ** 2)))
    if not is_same[-1] and first - second > 2 * tolerance * spread:
        raise GgufDifferenceError(f"{name}: llama.cpp continues the text with another token")
    return GgufComparison(len(found), error, tolerance, float(is_same.mean()))


def _centre(logits: Any) -> Any:
    return logits - logits.mean(axis=1, keepdims=True)
