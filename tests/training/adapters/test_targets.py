"""Which layers of a model get an adapter."""

from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BertForSequenceClassification,
    ConvNextConfig,
    ConvNextForImageClassification,
    GPT2Config,
    LlamaConfig,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from training.adapters.layers import add_adapter, plan_adapter
from training.adapters.names import name_in_file
from training.settings.adapter_settings import AdapterSettings
from training.spec import SettingError, TrainingSpec

LLAMA = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}


def make_llama(**changes: Any) -> Any:
    sizes = {**SIZES, **changes}
    config = LlamaConfig(vocab_size=20, num_attention_heads=2, num_key_value_heads=2, **sizes)
    return AutoModelForCausalLM.from_config(config)


def make_bert() -> Any:
    return BertForSequenceClassification(BertConfig(vocab_size=20, num_attention_heads=2, **SIZES))


def plan(model: Any, *, has_new_head: bool = False, **settings: Any) -> Any:
    with torch.device("meta"):
        return plan_adapter(model, AdapterSettings(**settings), has_new_head=has_new_head)


@pytest.mark.parametrize("targets", ["auto", "all-linear"])
def test_decoder_gets_an_adapter_in_all_layers_but_the_head(targets: str) -> None:
    assert plan(make_llama(), target_modules=targets).target_modules == set(LLAMA)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"target_modules": ["embed_tokens"]},
            "target_modules has 'embed_tokens', whose weight 'lm_h",
        ),
        (
            {"target_modules": ["lm_head"]},
            "target_modules has 'lm_head', whose weight 'model.embed_t",
        ),
        (
            {"modules_to_save": ["lm_head"]},
            "modules_to_save has 'lm_head', whose weight 'model.embe",
        ),
        ({"modules_to_save": ["model"], "target_modules": ["lm_head"]}, ".* has "),
    ],
)
def test_adapter_of_one_of_two_tied_modules_cannot_be_merged(
    settings: dict[str, Any], message: str
) -> None:
    tied = make_llama(tie_word_embeddings=True)
    with pytest.raises(SettingError, match=rf"^adapter\.{message}"):
        plan(tied, export="merged", **settings)
    plan(tied, export="adapter", **settings)
    plan(tied, export="merged")
    plan(make_llama(), export="merged", **settings)


def test_convolutions_of_gpt2_are_linear_layers() -> None:
    model = AutoModelForCausalLM.from_config(GPT2Config(n_embd=16, n_layer=2, n_head=2))
    assert plan(model).target_modules == {"c_attn", "c_fc", "c_proj"}


def test_new_head_and_pooler_are_learned_whole() -> None:
    model = make_bert()
    config = plan(model, has_new_head=True)
    assert sorted(config.modules_to_save) == ["bert.pooler", "classifier"]
    add_adapter(model, AdapterSettings(), has_new_head=True, seed=0)
    learned = {name for name, one in model.named_parameters() if one.requires_grad}
    assert {"classifier.modules_to_save.default.weight"} <= learned
    assert not any("pooler" in name and "lora" in name for name in learned)
    assert set(model.state_dict()) <= {*learned, "bert.embeddings.position_ids"}


def test_image_classifiers() -> None:
    sizes = {**SIZES, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    vit = plan(ViTForImageClassification(ViTConfig(**sizes)), has_new_head=True)
    assert "classifier" in vit.modules_to_save
    resnet = ResNetForImageClassification(ResNetConfig(hidden_sizes=[8, 8, 8, 8], depths=[1] * 4))
    with pytest.raises(SettingError, match=r"^adapter.target_modules is 'auto', and the model"):
        plan(resnet, has_new_head=True)
    found = plan(resnet, has_new_head=True, target_modules=["convolution"], rank=2)
    assert found.target_modules == {"convolution"}


MOE: dict[str, Any] = {
    "vocab_size": 20,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "num_local_experts": 4,
    "pad_token_id": 0,
    "num_experts": 4,
    **SIZES,
}
ATTENTION = {"k_proj", "o_proj", "q_proj", "v_proj"}


def build(model_type: str, **settings: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))


@pytest.mark.parametrize("targets", ["auto", "all-linear"])
@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("phi3", {"down_proj", "gate_up_proj", "o_proj", "qkv_proj"}),
        ("gemma", set(LLAMA)),
        ("mixtral", ATTENTION),
        ("qwen2_moe", set(LLAMA)),  # of the shared expert, without its gate of one row
        ("qwen3_moe", ATTENTION),
        ("phimoe", ATTENTION),  # without its router
        ("llama4_text", set(LLAMA)),
    ],
)
def test_fused_layers_and_experts(model_type: str, expected: set[str], targets: str) -> None:
    model = build(model_type, **MOE)
    assert plan(model, target_modules=targets).target_modules == expected
    with torch.device("meta"):
        add_adapter(model, AdapterSettings(target_modules=targets), has_new_head=False, seed=0)
    found = [name.split(".lora_A")[0] for name, _ in model.named_parameters() if "lora_A" in name]
    assert {name.rpartition(".")[2] for name in found} == expected
    assert not any(".experts" in name for name in found)


def test_names_that_peft_takes_for_experts_are_left_out() -> None:
    """The dense layers of these models have names that once meant single experts."""
    model = build("deepseek_v3", first_k_dense_replace=1, n_routed_experts=4, n_group=1, **MOE)
    expected = {"kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "q_a_proj", "q_b_proj"}
    assert plan(model).target_modules == expected
    with pytest.raises(
        SettingError, match=r"^adapter.target_modules has 'down_proj', which PEFT takes for the exp"
    ):
        plan(model, target_modules=["down_proj"])


def test_encoders_and_images() -> None:
    config = ModernBertConfig(vocab_size=20, num_attention_heads=2, pad_token_id=0, **SIZES)
    found = plan(ModernBertForSequenceClassification(config), has_new_head=True)
    assert found.target_modules == {"Wi", "Wo", "Wqkv"}
    assert set(found.modules_to_save) == {"head", "classifier"}
    convnext = ConvNextForImageClassification(
        ConvNextConfig(hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1])
    )
    assert plan(convnext, has_new_head=True).target_modules == {"pwconv1", "pwconv2"}
    with pytest.raises(SettingError, match=r"^adapter.rank is 4, expected a multiple of the 8 gr"):
        plan(convnext, has_new_head=True, target_modules=["dwconv"], rank=4)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gate_up_proj", "a parameter of MixtralExperts, and an adapter is added to linear layers"),
        ("experts", "a MixtralExperts, and an adapter is added to linear layers of a model"),
        ("input_layernorm", "a MixtralRMSNorm, and an adapter is added to linear layers"),
        ("mlp.gate", "a MixtralTopKRouter, and an adapter is added to linear layers"),
        ("w1", "and the model has no layer with such a name"),
    ],
)
def test_what_is_no_linear_layer_is_named(name: str, told: str) -> None:
    with pytest.raises(SettingError, match=f"^adapter.target_modules has '{name}', {told}"):
        plan(build("mixtral", **MOE), target_modules=[name])


def test_named_layers() -> None:
    found = plan(make_llama(), target_modules=["q_proj", "layers.1.mlp.up_proj"])
    assert found.target_modules == {
        "0.self_attn.q_proj",
        "1.mlp.up_proj",
        "1.self_attn.q_proj",
    }


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"target_modules": ["query"]},
            r"^adapter.target_modules has 'query', and the model has no layer with such a name; "
            r"it has .*'q_proj'",
        ),
        ({"modules_to_save": ["norms"]}, r"^adapter.modules_to_save has 'norms'"),
        (
            {"rank": 17},
            r"^adapter.rank is 17, more than 'model.layers.0.self_attn.q_proj' of 16 × 16 has; "
            r"lower it to at most 16",
        ),
    ],
)
def test_adapter_that_does_not_fit_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingError, match=told):
        plan(make_llama(), **settings)


@pytest.mark.parametrize(
    ("adapter", "told"),
    [
        ({"target_modules": "q_proj"}, "target_modules is \"q_proj\", expected 'auto'"),
        ({"target_modules": []}, "target_modules is empty"),
        ({"rank": 0}, "adapter.rank"),
        ({"size": 8}, "adapter.size"),
    ],
)
def test_invalid_settings_are_refused(adapter: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=r"adapter") as caught:
        TrainingSpec(base_model="m", train_file="r", adapter=adapter)
    assert told.split(", ")[0] in str(caught.value)


def test_pipeline_is_refused() -> None:
    with pytest.raises(ValueError, match="adapter is set, and a pipeline trains all weights"):
        TrainingSpec(
            base_model="m",
            train_file="r",
            adapter=AdapterSettings(),
            strategy="pipeline",
            zero_stage=1,
        )


def test_names_in_files_are_those_of_peft() -> None:
    assert name_in_file("model.layers.0.mlp.up_proj.lora_A.default.weight") == (
        "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"
    )
    assert name_in_file("a.lora_magnitude_vector.default.weight") == (
        "base_model.model.a.lora_magnitude_vector"
    )
    assert name_in_file("classifier.modules_to_save.default.bias") == (
        "base_model.model.classifier.bias"
    )
