"""Attention by row has the values and gradients of transformers' `sdpa` attention."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the conventional name
from transformers import AttentionInterface, AutoModelForCausalLM, LlamaConfig, MistralConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from training.kernels import row_attention
from training.kernels.row_attention import attend_by_row, use_attention_by_row
from training.losses.next_token import collate_tokens

LENGTHS = [5, 1, 9, 3]
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture
def uses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, bool]]]:
    """Register attention by row; yields the tokens of each call of the kernel, and if masked."""
    noted: list[tuple[int, bool]] = []

    def note(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        assert query.dtype == key.dtype == value.dtype == torch.float32
        noted.append((query.size(2), mask is not None))
        return sdpa_attention_forward(module, query, key, value, mask, **options)

    monkeypatch.setattr(row_attention, "_attend", note)
    use_attention_by_row()
    yield noted
    AttentionInterface.register("sdpa", sdpa_attention_forward)


def build_model(config: Any, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(dtype)


def make_batch() -> dict[str, torch.Tensor]:
    random = np.random.default_rng(0)
    rows = [
        (random.integers(0, 64, length).astype(np.int32), np.ones(length, np.bool_))
        for length in LENGTHS
    ]
    return dict(collate_tokens(rows, "packed").inputs)


def compute(model: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the logits and all gradients of their weighted sum."""
    model.zero_grad()
    logits = model(**inputs, use_cache=False).logits
    (logits.float() * torch.linspace(-1, 1, logits.numel()).view(logits.shape)).sum().backward()
    return [logits.detach(), *(one.grad.clone() for one in model.parameters())]


def differ(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Return the largest difference, relative to the norm of what is expected."""
    pairs = zip(found, expected, strict=True)
    return max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs)


@pytest.mark.parametrize(
    ("config", "is_masked"),
    [
        (LlamaConfig(**SIZES), []),
        (MistralConfig(**SIZES, sliding_window=4), [5, 9]),
        (MistralConfig(**SIZES, sliding_window=16), []),
    ],
    ids=["llama", "short window", "long window"],
)
def test_rows_are_computed_separately(
    config: Any, is_masked: list[int], uses: list[tuple[int, bool]]
) -> None:
    AttentionInterface.register("sdpa", sdpa_attention_forward)
    model, inputs = build_model(config), make_batch()
    expected = compute(model, inputs)
    assert not uses
    use_attention_by_row()
    assert differ(compute(model, inputs), expected) < 1e-5
    assert uses == [(length, length in is_masked) for length in LENGTHS] * 2


def test_padded_rows_are_computed_together(uses: list[tuple[int, bool]]) -> None:
    model = build_model(LlamaConfig(**SIZES))
    inputs = {"input_ids": torch.arange(24).view(3, 8)}
    found = compute(model, inputs)
    assert uses == [(8, False)] * 2
    AttentionInterface.register("sdpa", sdpa_attention_forward)
    assert differ(found, compute(model, inputs)) < 1e-6


@pytest.mark.parametrize("is_autocast", [False, True])
def test_half_precision_is_computed_in_fp32(
    is_autocast: bool, uses: list[tuple[int, bool]]
) -> None:
    """With sharp attention, bf16 scores would be wrong by far more than the rounded result."""
    torch.manual_seed(0)
    inputs = [(3 * torch.randn(1, 4, 40, 16)).bfloat16().float() for _ in range(3)]
    query, key, value = inputs
    exact = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    module: Any = torch.nn.Module()
    given = inputs if is_autocast else [one.bfloat16() for one in inputs]
    with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
        found, _ = attend_by_row(module, *given, None, is_causal=True)
    assert uses == [(40, False)]
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, exact.transpose(1, 2).bfloat16())


def test_gradients_have_the_dtype_of_the_model(uses: list[tuple[int, bool]]) -> None:
    config = LlamaConfig(**SIZES)
    found = compute(build_model(config, torch.bfloat16), make_batch())
    assert {one.dtype for one in found} == {torch.bfloat16}
    rounded = build_model(config, torch.bfloat16).float()
    assert differ(found, compute(rounded, make_batch())) < 0.03
    assert len(uses) == 2 * 2 * len(LENGTHS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_and_biases_are_applied(dtype: torch.dtype, uses: list[tuple[int, bool]]) -> None:
    """Masks that do not separate rows: of values, beside a bias, or of all tokens before."""
    torch.manual_seed(0)
    inputs = [torch.randn(1, 2, 6, 8).to(dtype) for _ in range(3)]
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    allowed = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    of_values = torch.randn(1, 1, 6, 6).to(dtype)
    module: Any = torch.nn.Module()
    for mask, options in (
        (of_values, {"position_ids": positions}),
        (allowed, {"position_ids": positions, "position_bias": of_values}),
        (allowed, {"position_ids": positions[0]}),
        (allowed, {"position_ids": positions + 1}),
        (allowed, {"position_ids": positions}),
        (allowed, {}),
    ):
        uses.clear()
        found, _ = attend_by_row(module, *inputs, mask, **options)
        assert [tokens for tokens, _ in uses] == [6]
        widened = mask.float() if mask.is_floating_point() else mask
        bias = options.get("position_bias")
        expected, _ = sdpa_attention_forward(
            module,
            *(one.float() for one in inputs),
            widened,
            position_bias=None if bias is None else bias.float(),
        )
        assert torch.equal(found, expected.to(dtype))


@pytest.mark.parametrize("states_it", ["module", "argument", "module beside None"])
def test_mask_is_kept_where_the_layer_is_not_causal_by_itself(
    states_it: str, uses: list[tuple[int, bool]]
) -> None:
    """Without a mask, such a layer would attend to all tokens of a row."""
    torch.manual_seed(0)
    inputs = [torch.randn(1, 2, 6, 8) for _ in range(3)]
    rows = torch.tensor([0, 0, 0, 1, 1, 1])
    mask = (rows[:, None] == rows).tril()[None, None]
    module: Any = torch.nn.Module()
    module.is_causal = states_it == "argument"
    options: dict[str, Any] = {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])}
    if states_it != "module":
        options["is_causal"] = False if states_it == "argument" else None
    found, _ = attend_by_row(module, *inputs, mask, **options)
    assert uses == [(3, True)] * 2
    expected, _ = sdpa_attention_forward(module, *inputs, mask, **options)
    assert torch.allclose(found, expected, atol=1e-6)


def test_options_of_the_model_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"scaling": 0.3, "dropout": 0.0}

    def check(_: Any, query: Any, *others: Any, **given: Any) -> Any:
        assert given == options
        return query.transpose(1, 2), None

    monkeypatch.setattr(row_attention, "_attend", check)
    inputs = [torch.randn(2, 2, 6, 8).bfloat16() for _ in range(3)]
    module: Any = torch.nn.Module()
    found, _ = attend_by_row(module, *inputs, None, **options)
    assert torch.equal(found, inputs[0].transpose(1, 2))
