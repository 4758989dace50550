"""Attention per request, compared with transformers' own attention for the whole batch."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from transformers import AutoTokenizer, MistralConfig, MistralForCausalLM, Qwen3Config
from transformers import Qwen3ForCausalLM as Qwen3
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from serving.cpu import attention_kernel, paged_attention
from serving.cpu.paged_attention import attend_by_request
from serving.engine.engine import Engine
from serving.engine.sampling import Sampling
from serving.loading.loading import load_model
from tests.tiny_model import CONTEXT_LENGTH

_NEW_LENGTHS = (1, 5, 1, 1)  # a prompt among three requests in decoding
_LENGTHS = (9, 5, 1, 30)  # tokens per request, including the new ones
_HEADS, _KV_HEADS, _SIZE = 4, 2, 8


class _Filled(PagedAttentionCache):  # type: ignore[misc]
    """A cache with the keys and values of all requests, with or without a window."""

    def __init__(self, key: torch.Tensor, value: torch.Tensor) -> None:
        self.full = key, value
        self.layer_to_allocator = {0: SimpleNamespace(index=0, layer_type="sliding_attention")}

    def update(self, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self.full


class _Layer(torch.nn.Module):
    layer_idx = 0
    num_key_value_groups = _HEADS // _KV_HEADS


def _build_mask(dtype: torch.dtype, seen_lengths: Sequence[int], window: int) -> torch.Tensor:
    mask = torch.full((sum(_NEW_LENGTHS), sum(seen_lengths)), torch.finfo(dtype).min, dtype=dtype)
    row = column = 0
    for new, seen in zip(_NEW_LENGTHS, seen_lengths, strict=True):
        for i in range(new):
            last = column + seen - new + i
            mask[row + i, max(column, last - window + 1) : last + 1] = 0
        row, column = row + new, column + seen
    return mask[None, None]


def _cumulate(lengths: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)


@pytest.mark.parametrize("has_kernel", [True, False])
@pytest.mark.parametrize("window", [100, 4])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 0.02), (torch.float16, 0.003)]
)
def test_attention_by_request_matches_masked_attention(
    dtype: torch.dtype,
    tolerance: float,
    window: int,
    has_kernel: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not has_kernel:
        monkeypatch.setattr(paged_attention, "can_attend", lambda _: False)
    torch.manual_seed(0)
    # Of its earlier tokens, a request sees only those in the window of its first new token.
    seen_lengths = [
        new + min(length - new, window - 1)
        for new, length in zip(_NEW_LENGTHS, _LENGTHS, strict=True)
    ]
    query = torch.randn(1, _HEADS, sum(_NEW_LENGTHS), _SIZE, dtype=dtype)
    key, value = torch.randn(2, 1, _KV_HEADS, sum(seen_lengths), _SIZE, dtype=dtype)
    mask = _build_mask(dtype, seen_lengths, window)

    output, weights = attend_by_request(
        _Layer(),
        *(query, query, query, mask),  # keys and values come from the cache
        scaling=0.3,
        cache=_Filled(key, value),
        cu_seq_lens_q=_cumulate(_NEW_LENGTHS),
        cu_seq_lens_k={"sliding_attention": _cumulate(seen_lengths)},
        read_index=[torch.arange(sum(seen_lengths))],
    )

    exact = (query.double(), key.double(), value.double(), mask.double())
    expected, _ = sdpa_attention_forward(_Layer(), *exact, scaling=0.3)
    assert weights is None
    assert output.dtype == dtype
    assert output.shape == (1, sum(_NEW_LENGTHS), _HEADS, _SIZE)
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=tolerance)


def test_position_bias_uses_attention_of_whole_batch() -> None:
    query, key = torch.randn(1, _HEADS, 2, _SIZE), torch.randn(1, _HEADS, 14, _SIZE)
    mask, bias = torch.zeros(1, 1, 2, 14), torch.randn(1, _HEADS, 2, 14)
    layer = torch.nn.Module()
    layer.layer_idx = 0  # type: ignore[assignment]

    output, _ = attend_by_request(
        layer, query, query, query, mask, cache=_Filled(key, key), position_bias=bias
    )

    scores = query @ key.transpose(2, 3) / _SIZE**0.5 + bias
    expected = (scores.softmax(-1) @ key).transpose(1, 2)
    torch.testing.assert_close(output, expected)


class TestModels:
    """Complete models of other architectures than the Llama of all other tests."""

    common: ClassVar[dict[str, Any]] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT_LENGTH,
        "initializer_range": 0.6,
        "bos_token_id": None,
    }

    def build(self, kind: str, tiny_model: Path, folder: Path) -> Path:
        tokenizer = AutoTokenizer.from_pretrained(tiny_model)
        common = {**self.common, "vocab_size": len(tokenizer), "eos_token_id": 3}
        torch.manual_seed(0)
        model: Any
        if kind == "a window":
            model = MistralForCausalLM(MistralConfig(**common, sliding_window=12))
        else:
            layers = ["full_attention", "sliding_attention"]
            config = Qwen3Config(
                **common,
                head_dim=16,
                use_sliding_window=True,
                sliding_window=12,
                layer_types=layers,
            )
            model = Qwen3(config)
        shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("config.json", "model*"))
        model.save_pretrained(folder)
        return folder

    @pytest.mark.parametrize("kind", ["a window", "a window in half of the layers"])
    def test_concurrent_answers_equal_generate(
        self,
        kind: str,
        load_engine: Callable[..., Engine],
        tiny_model: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        path = self.build(kind, tiny_model, tmp_path / "model")
        num_at_once: list[int] = []

        def count(query: torch.Tensor, rows: Any, *args: Any) -> None:
            num_at_once.append(len(rows))
            attention_kernel.attend(query, rows, *args)

        monkeypatch.setattr(paged_attention, "attend", count)
        engine = load_engine(path, max_running_requests=4)
        prompts = [[5 + (7 * i + j) % 300 for j in range(4 + 6 * i)] for i in range(6)]

        async def answer(ids: list[int]) -> list[str]:
            sampling = Sampling(max_new_tokens=25)
            return [piece.text async for piece in engine.generate(ids, sampling)]

        async def answer_all() -> list[list[str]]:
            return await asyncio.gather(*(answer(ids) for ids in prompts))

        answers = asyncio.run(answer_all())
        assert max(num_at_once) == 4  # the kernel was used
        model, tokenizer = load_model(path)
        for ids, pieces in zip(prompts, answers, strict=True):
            generated = model.generate(
                torch.tensor([ids]), max_new_tokens=25, do_sample=False, pad_token_id=0
            )[0, len(ids) :]
            assert "".join(pieces) == tokenizer.decode(generated, skip_special_tokens=True)
