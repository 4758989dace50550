"""Adapters that start from the base weights, compared with those of PEFT."""

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from training.adapters.initial import append_initial
from training.adapters.layers import add_adapter
from training.settings.adapter_settings import AdapterSettings
from training.spec import SettingError

IDS = torch.arange(20)[None]


def make_model(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    config: Any = {
        "llama": LlamaConfig(
            vocab_size=20,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
        ),
        "gpt2": GPT2Config(vocab_size=20, n_embd=16, n_layer=2, n_head=2),
    }[kind]
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(config).to(dtype).eval()


def compute(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(IDS).logits
    return logits


def start(model: Any, *, is_resumed: bool = False, **settings: Any) -> Any:
    adapter = AdapterSettings(rank=4, **settings)
    add_adapter(model, adapter, has_new_head=False, seed=0, is_resumed=is_resumed)
    return model


@pytest.mark.parametrize("method", ["lora", "rslora"])
@pytest.mark.parametrize(
    ("kind", "init"), [("llama", "pissa"), ("llama", "olora"), ("gpt2", "pissa")]
)
def test_values_are_those_of_peft(kind: str, init: str, method: str) -> None:
    base = make_model(kind)
    plain = compute(base)
    config: Any = LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules="all-linear",
        exclude_modules=["lm_head"],
        fan_in_fan_out=kind == "gpt2",
        use_rslora=method == "rslora",
        init_lora_weights=init,
    )
    peft = inject_adapter_in_model(config, copy.deepcopy(base))
    ours = start(copy.deepcopy(base), method=method, init=init)
    expected, found = dict(peft.named_parameters()), dict(ours.named_parameters())
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        if "lora_" in name:
            assert torch.allclose(found[name], value, atol=1e-6), name
    for name, value in base.named_parameters():  # what is frozen is the base model itself
        frozen = found.get(name, found.get(name.replace(".weight", ".base_layer.weight")))
        frozen = found[name.replace(".bias", ".base_layer.bias")] if frozen is None else frozen
        assert torch.equal(frozen, value), name
    assert torch.allclose(compute(ours), plain, atol=1e-5)
    with torch.no_grad():
        for model in (ours, peft):
            for name, value in model.named_parameters():
                if "lora_" in name:
                    value += 0.01
    assert torch.allclose(compute(ours), compute(peft), atol=1e-4)
    assert not torch.allclose(compute(ours), plain, atol=1e-2)


def test_disabled_adapter_leaves_the_base_model() -> None:
    base = make_model("llama")
    plain = compute(base)
    model = start(base, init="pissa")
    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.enable_adapters(False)
    assert torch.equal(compute(model), plain)


def test_state_has_the_initial_values_which_a_resumed_run_takes_from_it() -> None:
    base = make_model("llama")
    trained = start(copy.deepcopy(base), init="olora")
    state = trained.state_dict()
    assert {name.rpartition(".q_proj.")[2] for name in state if "0.self_attn.q_proj" in name} == {
        "lora_A.default.weight",
        "lora_B.default.weight",
        "initial_A",
        "initial_B",
    }
    resumed = start(copy.deepcopy(base), init="olora", is_resumed=True)
    assert compute(resumed).isnan().all()  # a missing checkpoint cannot be overlooked
    resumed.load_state_dict(state, strict=False)
    assert torch.equal(compute(resumed), compute(trained))


def test_half_precision_starts_near_the_base_model() -> None:
    base = make_model("llama", torch.bfloat16)
    plain = compute(base).float()
    found = compute(start(base, init="pissa")).float()
    assert float((found - plain).norm() / plain.norm()) < 0.05


def test_published_product_is_the_difference_of_both() -> None:
    torch.manual_seed(0)
    a, b, a0, b0 = (torch.randn(*shape) for shape in [(2, 5), (7, 2), (2, 5), (7, 2)])
    buffers = {"x.initial_A": a0, "x.initial_B": b0}
    long_a = append_initial("x.lora_A.default.weight", a, buffers)
    long_b = append_initial("x.lora_B.default.weight", b, buffers)
    assert long_a.shape == (4, 5)
    assert torch.allclose(long_b @ long_a, b @ a - b0 @ a0, atol=1e-5)
    assert append_initial("y.lora_A.default.weight", a, buffers) is a


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_dora_is_refused(init: str) -> None:
    with pytest.raises(ValueError, match=f"init is '{init}' and method is 'dora', whose learned"):
        AdapterSettings.model_validate({"method": "dora", "init": init})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"init": "olora"}, "'olora', which PEFT does not have for 'transformer.h.0.attn.c_attn'"),
        ({"init": "pissa", "target_modules": ["wte"]}, "for 'transformer.wte', a Embedding"),
    ],
)
def test_layers_without_such_values_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingError, match=f"^adapter.init is .*{told}"):
        start(make_model("gpt2"), **settings)
