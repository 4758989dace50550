from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the conventional name

from training.batching import BatchLayout
from training.data.text.token_layout import TokenRow
from training.losses.next_token import IGNORED_LABEL, collate_tokens, sum_loss
from training.model import load_model
from training.spec import TrainingSpec
from training.task import open_default_objective

LAYOUTS: tuple[BatchLayout, ...] = ("padded", "packed")
NONE = IGNORED_LABEL


def make_row(ids: list[int], learned: list[int]) -> TokenRow:
    return np.array(ids, dtype=np.int32), np.array(learned, dtype=np.bool_)


# In the second row, the first token is marked as learned, but no earlier token predicts it.
ROWS = [make_row([5, 6, 7, 8], [0, 0, 1, 1]), make_row([9, 3], [1, 1]), make_row([4], [1])]


def test_padded_rows_are_padded_on_the_right() -> None:
    batch = collate_tokens(ROWS, "padded")
    assert set(batch.inputs) == {"input_ids"}
    assert batch.inputs["input_ids"].tolist() == [[5, 6, 7, 8], [9, 3, 0, 0], [4, 0, 0, 0]]
    assert batch.labels.tolist() == [[NONE, 7, 8, NONE], [3, NONE, NONE, NONE], [NONE] * 4]


def test_packed_rows_are_concatenated() -> None:
    batch = collate_tokens(ROWS, "packed")
    assert set(batch.inputs) == {"input_ids", "position_ids"}
    assert batch.inputs["input_ids"].tolist() == [[5, 6, 7, 8, 9, 3, 4]]
    assert batch.inputs["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 0]]
    assert batch.labels.tolist() == [[NONE, 7, 8, NONE, 3, NONE, NONE]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_are_int64_and_have_one_shape(layout: BatchLayout) -> None:
    batch = collate_tokens(ROWS, layout).to(torch.device("cpu"))
    tensors = [*batch.inputs.values(), batch.labels]
    assert {tensor.dtype for tensor in tensors} == {torch.int64}
    assert len({tensor.shape for tensor in tensors}) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_empty_share_has_one_ignored_token(layout: BatchLayout) -> None:
    batch = collate_tokens([], layout)
    assert batch.inputs["input_ids"].tolist() == [[0]]
    assert batch.labels.tolist() == [[IGNORED_LABEL]]


@pytest.fixture(scope="module")
def rows() -> list[TokenRow]:
    random = np.random.default_rng(3)
    return [
        (random.integers(4, 300, length, dtype=np.int32), random.random(length) < 0.6)
        for length in (17, 3, 40, 40, 1, 25)
    ]


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> BatchLayout:
    layout: BatchLayout = request.param
    return layout


@pytest.fixture(scope="module")
def model(tiny_model: Path, layout: BatchLayout) -> Any:
    spec = TrainingSpec(base_model=str(tiny_model), train_file="f", precision="fp32")
    return load_model(spec, open_default_objective(), layout)


def compute_loss_by_hand(model: Any, rows: list[TokenRow]) -> float:
    """Compute the loss one row at a time, with masked labels, and logits and labels shifted."""
    total = 0.0
    for ids, learned in rows:
        input_ids = torch.from_numpy(ids.astype(np.int64))[None]
        labels = input_ids.masked_fill(~torch.from_numpy(learned)[None], IGNORED_LABEL)
        with torch.no_grad():
            logits = model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids)).logits
        total += float(
            F.cross_entropy(
                logits[0, :-1], labels[0, 1:], ignore_index=IGNORED_LABEL, reduction="sum"
            )
        )
    return total


def test_loss_equals_manual_computation(
    model: Any, rows: list[TokenRow], layout: BatchLayout
) -> None:
    with torch.no_grad():
        together = float(sum_loss(model, collate_tokens(rows, layout)))
        one_by_one = sum(float(sum_loss(model, collate_tokens([row], layout))) for row in rows)
    by_hand = compute_loss_by_hand(model, rows)
    assert by_hand > 0
    assert together == pytest.approx(by_hand, rel=1e-5)
    assert one_by_one == pytest.approx(by_hand, rel=1e-5)


def test_loss_equals_that_of_transformers(
    model: Any, rows: list[TokenRow], layout: BatchLayout
) -> None:
    """transformers shifts the labels itself and averages over those that are not ignored."""
    expected = 0.0
    for ids, learned in rows:
        if num_learned := int(learned[1:].sum()):
            input_ids = torch.from_numpy(ids.astype(np.int64))[None]
            labels = input_ids.masked_fill(~torch.from_numpy(learned)[None], IGNORED_LABEL)
            with torch.no_grad():
                expected += float(model(input_ids=input_ids, labels=labels).loss) * num_learned
    with torch.no_grad():
        assert float(sum_loss(model, collate_tokens(rows, layout))) == pytest.approx(
            expected, rel=1e-5
        )


def test_gradients_of_both_layouts_agree(model: Any, rows: list[TokenRow]) -> None:
    gradients = []
    for layout in LAYOUTS:
        loss = sum_loss(model, collate_tokens(rows, layout))
        parts = torch.autograd.grad(loss, list(model.parameters()))
        gradients.append(torch.cat([part.flatten() for part in parts]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-4)


def test_empty_share_has_zero_gradient(model: Any, layout: BatchLayout) -> None:
    loss = sum_loss(model, collate_tokens([], layout))
    assert loss.item() == 0
    assert not any(part.any() for part in torch.autograd.grad(loss, list(model.parameters())))
