"""A fused layer with an adapter has the values and gradients of PEFT's layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from training.kernels import low_rank
from training.kernels.low_rank import fuse_products, multiply_adapted

NAME = "default"


def make_layer(*, has_bias: bool = True, **settings: Any) -> Any:
    """Return a layer with an adapter, in float64, whose B is not zero."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(6, 5, bias=has_bias)).double()
    inject_adapter_in_model(LoraConfig(target_modules=["0"], r=2, **settings), model, NAME)
    with torch.no_grad():
        model[0].lora_B[NAME].weight.normal_()
    return model.double()


def compute(model: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the outputs, and the gradients of the inputs and of what is learned."""
    torch.manual_seed(1)
    inputs = torch.randn(2, 3, 6, dtype=next(model.parameters()).dtype).requires_grad_()
    outputs = model(inputs)
    learned = [one for one in model.parameters() if one.requires_grad]
    above = torch.randn_like(outputs)
    found = torch.autograd.grad(outputs, [inputs, *learned], above, allow_unused=True)
    return outputs.detach(), [one for one in found if one is not None]


@contextmanager
def noting_uses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Tensor]]:
    uses = []

    def note(inputs: torch.Tensor, *others: Any) -> torch.Tensor:
        uses.append(inputs)
        return multiply_adapted(inputs, *others)

    with monkeypatch.context() as patch:
        patch.setattr(low_rank, "multiply_adapted", note)
        yield uses


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("settings", [{"lora_alpha": 3}, {"use_rslora": True, "lora_alpha": 5}])
def test_fused_layer_computes_what_peft_does(
    has_bias: bool, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = compute(make_layer(has_bias=has_bias, **settings))
    model = make_layer(has_bias=has_bias, **settings)
    fuse_products(model)
    with noting_uses(monkeypatch) as uses:
        torch.testing.assert_close(compute(model), expected)
    assert len(uses) == 1


def test_inputs_without_gradients_are_accepted() -> None:
    model = make_layer()
    fuse_products(model)
    model(torch.randn(4, 6, dtype=torch.float64)).sum().backward()
    assert model[0].lora_A[NAME].weight.grad.any()


SETTINGS: dict[str, dict[str, Any]] = {
    "dropout": {"lora_dropout": 0.5},
    "dora": {"use_dora": True},
    "bias of B": {"lora_bias": True},
}


@pytest.mark.parametrize(
    "case",
    [
        *("disabled", "merged", "dropout", "dora", "autocast", "float32"),
        *("two adapters", "learned weight", "learned bias", "bias of B"),
    ],
)
def test_other_layers_are_computed_by_peft(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SETTINGS.get(case, {})
    models = [make_layer(**settings) for _ in range(2)]
    fuse_products(models[1])
    results = []
    with noting_uses(monkeypatch) as uses:
        for model in models:
            if case == "disabled":
                model[0].enable_adapters(enabled=False)
            elif case == "merged":
                model[0].merge()
            elif case == "two adapters":
                torch.manual_seed(2)
                model[0].update_layer("second", r=3, lora_alpha=1, config=LoraConfig(r=3))
                model[0].set_adapter([NAME, "second"])
                model.double()
            elif case.startswith("learned"):
                getattr(model[0].base_layer, case.removeprefix("learned ")).requires_grad = True
            elif case == "float32":  # as PEFT leaves the adapter of a base model in bf16
                model[0].lora_A.float()
                model[0].lora_B.float()
            with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
                results.append(compute(model))
    assert not uses
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_layers_that_are_not_linear_are_computed_by_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = nn.Sequential(nn.Embedding(6, 5), nn.Conv1d(7, 4, 1))
    inject_adapter_in_model(LoraConfig(target_modules=["0", "1"], r=2), model, NAME)
    expected = model(torch.zeros(2, 7, dtype=torch.int64))
    fuse_products(model)
    with noting_uses(monkeypatch) as uses:
        assert torch.equal(model(torch.zeros(2, 7, dtype=torch.int64)), expected)
    assert not uses


def test_outputs_may_be_changed_in_place() -> None:
    """OLMo limits the values of queries and keys so."""
    results = []
    for is_fused in (False, True):
        model = make_layer()
        if is_fused:
            fuse_products(model)
        model.register_forward_hook(lambda _, inputs, outputs: outputs.clamp_(-0.5, 0.5))
        results.append(compute(model))
    torch.testing.assert_close(results[1], results[0])


def test_inputs_without_rows_are_accepted() -> None:
    """An expert may get no tokens."""
    model = make_layer()
    fuse_products(model)
    inputs = torch.zeros(0, 6, dtype=torch.float64, requires_grad=True)
    model(inputs).sum().backward()
    assert not model[0].lora_A[NAME].weight.grad.any()
    assert inputs.grad is not None
