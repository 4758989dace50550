import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from model_files.gguf import comparison
from model_files.gguf.comparison import (
    TEXT,
    TOLERANCES,
    GgufDifferenceError,
    compare_with_original,
    explain_no_comparison,
)
from model_files.gguf.llama_cpp_tools import CONVERTER_TYPES, QUANTISER_TYPES
from model_files.loading import load_tokenizer
from system.free_resources import Memory
from system.library_errors import LibraryError
from tests.tiny_model import build_tiny_model

Change = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def install(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that installs a stand-in for llama-cpp-python with changed tokens or logits."""

    class Llama:
        change: Change
        last_token: int | None

        def __init__(self, path: str, **settings: Any) -> None:
            assert settings["logits_all"]
            self.scores: Any = None

        def tokenize(self, text: bytes, **settings: Any) -> list[int]:
            ids: list[int] = load_tokenizer(directory).encode(text.decode())
            return ids if self.last_token is None else [*ids[:-1], self.last_token]

        def eval(self, token_ids: list[int]) -> None:
            model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
            with torch.inference_mode():
                logits = model(torch.tensor([token_ids])).logits[0]
            self.scores = type(self).change(logits).numpy()

        def close(self) -> None:
            pass

    def install(change: Change = torch.clone, last_token: int | None = None) -> None:
        Llama.change, Llama.last_token = staticmethod(change), last_token
        monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(Llama=Llama))

    return install


def test_equal_logits_are_accepted(install: Callable[..., None], directory: Path) -> None:
    install(lambda logits: logits + 3)  # a constant changes no probability
    found = compare_with_original(Path("tiny.gguf"), directory, "f32")
    assert found.num_tokens == len(load_tokenizer(directory).encode(TEXT))
    assert found.error < 1e-5
    assert found.greedy_share == 1


def test_tolerance_depends_on_quantization(install: Callable[..., None], directory: Path) -> None:
    def disturb(logits: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
        return logits + 0.05 * logits.std() * noise

    install(disturb)
    found = compare_with_original(Path("tiny.gguf"), directory, "q8_0")
    assert 0.03 < found.error < 0.07
    with pytest.raises(GgufDifferenceError, match=r"differ by 0.0\d\d .* at most 0.01 for f32"):
        compare_with_original(Path("tiny.gguf"), directory, "f32")


def test_every_quantization_has_tolerance() -> None:
    names = {name.split("_")[0] for name in (*CONVERTER_TYPES, *QUANTISER_TYPES)}
    assert names == TOLERANCES.keys()


def test_logits_that_are_not_numbers_are_refused(
    install: Callable[..., None], directory: Path
) -> None:
    install(lambda logits: logits * float("nan"))
    with pytest.raises(GgufDifferenceError, match="differ by nan"):
        compare_with_original(Path("tiny.gguf"), directory, "q2_k")


def test_other_tokens_are_refused(install: Callable[..., None], directory: Path) -> None:
    install(last_token=7)
    with pytest.raises(GgufDifferenceError, match="the converter chose another tokenizer"):
        compare_with_original(Path("tiny.gguf"), directory, "f32")


def test_other_next_token_is_refused(install: Callable[..., None], directory: Path) -> None:
    def forbid(logits: torch.Tensor) -> torch.Tensor:
        changed = logits.clone()
        second, first = changed[-1].argsort()[-2:]
        changed[-1, first] = changed[-1, second] - 0.001
        return changed

    install(forbid)
    with pytest.raises(GgufDifferenceError, match="continues the text with another token"):
        compare_with_original(Path("tiny.gguf"), directory, "f32")


def test_failure_of_llama_cpp_is_explained(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **settings: Any) -> None:
        raise RuntimeError("no context")

    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(Llama=refuse))
    message = r"^llama-cpp-python cannot run tiny\.gguf \(RuntimeError: no context\); install a"
    with pytest.raises(LibraryError, match=message):
        compare_with_original(Path("tiny.gguf"), directory, "f32")


def test_failure_of_transformers_is_explained(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(directory: Path, **settings: Any) -> None:
        raise KeyError("new_model")

    monkeypatch.setattr(comparison, "_compute_converted", lambda path, ids: (ids, None))
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refuse)
    message = r"^transformers cannot run the model 'tiny' \(KeyError: 'new_model'\); install a"
    with pytest.raises(LibraryError, match=message):
        compare_with_original(Path("tiny.gguf"), directory, "f32")


def test_reason_why_nothing_is_compared(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "find_spec", lambda name: None)
    assert explain_no_comparison(directory) == "llama-cpp-python is not installed"
    monkeypatch.setattr(comparison, "find_spec", lambda name: object())
    assert explain_no_comparison(directory) is None
    monkeypatch.setattr(comparison, "measure_host_memory", lambda: Memory(1000, 1000))
    reason = explain_no_comparison(directory)
    assert reason is not None
    assert reason.startswith("it needs 0.0 GB of memory")
