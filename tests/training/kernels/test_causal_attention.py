"""Attention by blocks has the values and gradients of PyTorch's attention."""

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from training.kernels.causal_attention import attend_by_blocks, attend_causally

BF16_ROUNDING = 0.02


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype)


@pytest.mark.parametrize("num_tokens", [1, 2, 127, 128, 129, 300])
@pytest.mark.parametrize("num_key_heads", [1, 2, 6])
def test_values_and_gradients_are_those_of_pytorch(num_tokens: int, num_key_heads: int) -> None:
    torch.manual_seed(0)
    query = draw(2, 6, num_tokens, 8).requires_grad_()
    key = draw(2, num_key_heads, num_tokens, 8).requires_grad_()
    value = draw(2, num_key_heads, num_tokens, 4).requires_grad_()
    above = draw(2, 6, num_tokens, 4)
    attended = attend_causally(query, key, value, 0.3)
    expected = scaled_dot_product_attention(
        query, key, value, scale=0.3, is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(attended, expected)
    inputs = (query, key, value)
    torch.testing.assert_close(
        torch.autograd.grad(attended, inputs, above), torch.autograd.grad(expected, inputs, above)
    )


def test_transposed_tensors_are_accepted() -> None:
    torch.manual_seed(0)
    query, key, value = (draw(2, 140, 3, 8).transpose(1, 2).requires_grad_() for _ in range(3))
    assert torch.autograd.gradcheck(
        lambda q, k, v: attend_causally(q, k, v, 0.5)[:, :, 126:131],
        (query, key, value),
        fast_mode=True,
    )


def make_llama(**changes: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, **heads, **changes)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def compute_gradients(model: Any, **inputs: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(0, 50, (3, 150))
    model.zero_grad()
    model(input_ids=ids, labels=ids, **inputs).loss.backward()
    return {name: one.grad.clone() for name, one in model.named_parameters()}


def is_used(model: Any, monkeypatch: pytest.MonkeyPatch, **inputs: Any) -> bool:
    """Tell whether a forward and backward pass attend by blocks."""
    calls = []

    def note(*tensors: Any) -> torch.Tensor:
        calls.append(tensors)
        return attend_causally(*tensors)

    with monkeypatch.context() as patch:
        patch.setattr("training.kernels.causal_attention.attend_causally", note)
        compute_gradients(model, **inputs)
    return bool(calls)


def test_model_in_bf16_has_the_gradients_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, blocked = make_llama(), make_llama()
    attend_by_blocks(blocked)
    assert is_used(blocked, monkeypatch)
    exact = compute_gradients(make_llama().double())
    for model in (plain, blocked):
        for name, gradient in compute_gradients(model).items():
            difference = (gradient - exact[name]).norm() / exact[name].norm()
            assert difference < BF16_ROUNDING, name


@pytest.mark.parametrize("case", ["mask", "fp32", "long", "eager"])
def test_other_attention_is_left_to_transformers(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_llama(**({"attn_implementation": "eager"} if case == "eager" else {}))
    attend_by_blocks(model)
    inputs = {}
    if case == "mask":
        inputs["attention_mask"] = (torch.arange(150) > 5).long().expand(3, -1)
    elif case == "fp32":
        model.float()
    elif case == "long":
        monkeypatch.setattr("training.kernels.causal_attention._MAX_TOKENS", 149)
    assert not is_used(model, monkeypatch, **inputs)
    plain = make_llama(**({"attn_implementation": "eager"} if case == "eager" else {}))
    expected = compute_gradients(plain.float() if case == "fp32" else plain, **inputs)
    torch.testing.assert_close(compute_gradients(model, **inputs), expected, rtol=0, atol=0)


def test_logits_without_gradients_are_those_of_transformers() -> None:
    ids = torch.arange(40)[None]
    model = make_llama()
    with torch.no_grad():
        expected = model(ids).logits
        attend_by_blocks(model)
        assert torch.equal(model(ids).logits, expected)


def test_autocast_attends_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_llama().float()
    attend_by_blocks(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert is_used(model, monkeypatch)


def test_dropout_of_attention_is_left_to_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=50, n_positions=200)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    attend_by_blocks(model)
    model.train()
    assert not is_used(model, monkeypatch)
    model.eval()
    assert is_used(model, monkeypatch)
