"""The kernel for one new token per request, compared with a plain softmax."""

import numpy as np
import pytest
import torch

from serving.cpu.attention_kernel import attend, can_attend


def _attend_exactly(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """Compute attention in fp64.

    The shapes are `[H, D]`, `[K, H_kv, D]` and `[K, H_kv, D_v]`; the result is `[H, D_v]`.
    """
    num_sharing = query.size(0) // keys.size(1)
    keys, values = (each.double().repeat_interleave(num_sharing, dim=1) for each in (keys, values))
    weights = torch.einsum("hd,khd->hk", query.double(), keys).mul(scale).softmax(-1)
    return torch.einsum("hk,khd->hd", weights, values)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 0.02)])
def test_each_request_attends_to_its_own_positions(
    dtype: torch.dtype, tolerance: float, num_heads: int, num_kv_heads: int
) -> None:
    torch.manual_seed(0)
    query = torch.randn(7, num_heads, 16, dtype=dtype)
    keys = torch.randn(50, num_kv_heads, 16, dtype=dtype)
    values = torch.randn(50, num_kv_heads, 24, dtype=dtype)
    places = torch.randperm(50)[:40]
    rows, spans = np.array([5, 0, 3]), np.array([[12, 40], [0, 1], [1, 12]])
    outputs = torch.full((7, num_heads, 24), 9.0, dtype=dtype)

    attend(query, rows, keys, values, places, spans, 0.3, outputs)

    for row, (begin, end) in zip(rows, spans, strict=True):
        own = places[begin:end]
        expected = _attend_exactly(query[row], keys[own], values[own], 0.3)
        torch.testing.assert_close(outputs[row].double(), expected, rtol=0, atol=tolerance)
    others = [row for row in range(7) if row not in rows]
    assert (outputs[others] == 9).all()


def test_bf16_output_is_rounded_to_nearest() -> None:
    """One position has all the weight, so the output is its value, rounded once from fp32."""
    values = torch.randn(1000, 1, 64, dtype=torch.bfloat16)
    outputs = torch.empty(1000, 1, 64, dtype=torch.bfloat16)
    each = np.arange(1000)
    query = torch.zeros(1000, 1, 64, dtype=torch.bfloat16)
    spans = np.stack([each, each + 1], axis=1)
    attend(query, each, values, values, torch.arange(1000), spans, 1.0, outputs)
    assert torch.equal(outputs, values)

    halves = np.stack([each[:500] * 2, each[:500] * 2 + 2], axis=1)  # the mean of two values
    attend(query[:500], each[:500], values, values, torch.arange(1000), halves, 1.0, outputs)
    expected = values.float().view(500, 2, 1, 64).mean(1).bfloat16()
    assert torch.equal(outputs[:500], expected)


def test_large_scores_do_not_overflow_and_nan_is_propagated() -> None:
    query = torch.full((2, 1, 4), 300.0)
    keys = torch.tensor([1.0, -1.0, 0.5]).view(3, 1, 1).expand(3, 1, 4).contiguous()
    keys = torch.cat([keys, torch.full((1, 1, 4), torch.nan)])
    values = torch.arange(16.0).view(4, 1, 4)
    outputs = torch.empty(2, 1, 4)
    spans = np.array([[0, 3], [2, 4]])
    attend(query, np.array([0, 1]), keys, values, torch.arange(4), spans, 1.0, outputs)
    torch.testing.assert_close(outputs[0], values[0])
    assert outputs[1].isnan().all()


def test_kernel_is_not_used_for_many_threads_or_other_dtypes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert can_attend(torch.zeros(1))
    assert can_attend(torch.zeros(1, dtype=torch.bfloat16))
    assert not can_attend(torch.zeros(1, dtype=torch.float16))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert not can_attend(torch.zeros(1))
