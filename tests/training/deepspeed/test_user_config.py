import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from training.deepspeed.config import build_deepspeed_config
from training.spec import TrainingSpec, describe_validation_error, load_spec

# Examples from https://huggingface.co/docs/transformers/deepspeed.
_COMMON: dict[str, Any] = {
    "fp16": {
        "enabled": "auto",
        "loss_scale": 0,
        "loss_scale_window": 1000,
        "initial_scale_power": 16,
        "hysteresis": 2,
        "min_loss_scale": 1,
    },
    "bf16": {"enabled": "auto"},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "total_num_steps": "auto",
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": "auto",
        },
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}
ZERO_2 = {
    **_COMMON,
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "allgather_partitions": True,
        "allgather_bucket_size": 2e8,
        "overlap_comm": True,
        "reduce_scatter": True,
        "reduce_bucket_size": 2e8,
        "contiguous_gradients": True,
    },
}
ZERO_3 = {
    **_COMMON,
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
}
NVME = {"offload_optimizer": {"device": "nvme"}}


def make_spec(deepspeed: Any, **settings: Any) -> TrainingSpec:
    return TrainingSpec.model_validate(
        {"base_model": "m", "train_file": "f", "deepspeed": deepspeed, **settings}
    )


def nest(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


@pytest.mark.parametrize("config", [ZERO_2, ZERO_3], ids=["ZeRO-2", "ZeRO-3"])
def test_documented_deepspeed_config_is_accepted(config: dict[str, Any]) -> None:
    spec = make_spec(config, learning_rate=3e-5, micro_batch_size=4)
    stage = config["zero_optimization"]["stage"]
    assert (spec.zero_stage, spec.offload_optimizer) == (stage, True)
    assert spec.offload_parameters is (stage == 3)
    assert (spec.learning_rate, spec.lr_schedule, spec.precision) == (3e-5, "linear", "auto")
    defaults = TrainingSpec(base_model="m", train_file="f")
    for name in ("adam_betas", "adam_epsilon", "weight_decay", "max_grad_norm", "warmup_ratio"):
        assert getattr(spec, name) == getattr(defaults, name)
    built = build_deepspeed_config(spec, 2, hidden_size=512)
    assert "auto" not in json.dumps(built)
    assert not {"optimizer", "scheduler"} & set(built)
    assert built["steps_per_print"] == 2000
    assert built["fp16"] == {**_COMMON["fp16"], "enabled": False}
    given = {k: v for k, v in config["zero_optimization"].items() if v != "auto"}
    assert given.items() <= built["zero_optimization"].items()


def test_auto_sizes_follow_from_hidden_size() -> None:
    built = build_deepspeed_config(make_spec(ZERO_3), 2, hidden_size=100)
    zero = built["zero_optimization"]
    assert zero["reduce_bucket_size"] == 10_000
    assert zero["stage3_prefetch_bucket_size"] == 9_000
    assert zero["stage3_param_persistence_threshold"] == 1_000


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("zero_optimization.stage", 1, "zero_stage", 1),
        ("zero_optimization.offload_optimizer.device", "cpu", "offload_optimizer", True),
        ("zero_optimization.offload_optimizer.device", "none", "offload_optimizer", False),
        ("zero_optimization.offload_param.device", "cpu", "offload_parameters", True),
        ("gradient_clipping", 0.5, "max_grad_norm", 0.5),
        ("gradient_accumulation_steps", 8, "gradient_accumulation_steps", 8),
        ("train_micro_batch_size_per_gpu", 4, "micro_batch_size", 4),
        ("wall_clock_breakdown", True, "wall_clock_breakdown", True),
        ("optimizer.params.lr", 5e-5, "learning_rate", 5e-5),
        ("scheduler.params.warmup_max_lr", 5e-5, "learning_rate", 5e-5),
        ("optimizer.params.weight_decay", 0.1, "weight_decay", 0.1),
        ("optimizer.params.betas", [0.8, 0.999], "adam_betas", (0.8, 0.999)),
        ("optimizer.params.eps", 1e-6, "adam_epsilon", 1e-6),
        ("scheduler.type", "WarmupLR", "lr_schedule", "constant"),
        ("scheduler.type", "WarmupDecayLR", "lr_schedule", "linear"),
        ("scheduler.type", "WarmupCosineLR", "lr_schedule", "cosine"),
        ("bf16.enabled", True, "precision", "bf16"),
        ("fp16.enabled", True, "precision", "fp16"),
        ("bf16.enabled", False, "precision", "fp32"),
    ],
)
def test_deepspeed_value_sets_spec_field(key: str, value: Any, field: str, expected: Any) -> None:
    config = nest(key, value)
    spec = make_spec(config)
    assert getattr(spec, field) == expected
    assert make_spec(config, **{field: expected}) == spec
    untouched = make_spec(nest(key, "auto"))
    assert getattr(untouched, field) == TrainingSpec.model_fields[field].default


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (
            nest("zero_optimization.stage", 2),
            {"zero_stage": 3},
            "deepspeed.zero_optimization.stage is 2, but zero_stage is 3: set one of them, or it "
            "to 'auto'",
        ),
        (
            nest("gradient_clipping", 0.5),
            {"max_grad_norm": 1.0},
            "deepspeed.gradient_clipping is 0.5, but max_grad_norm is 1.0",
        ),
        (
            nest("gradient_accumulation_steps", 8),
            {"gradient_accumulation_steps": 4},
            "deepspeed.gradient_accumulation_steps is 8, but gradient_accumulation_steps is 4",
        ),
        (
            nest("train_micro_batch_size_per_gpu", 8),
            {"micro_batch_size": 4},
            "deepspeed.train_micro_batch_size_per_gpu is 8, but micro_batch_size is 4",
        ),
        (
            nest("optimizer.params.lr", 1e-5),
            {"learning_rate": 1e-4},
            "deepspeed.optimizer.params.lr is 1e-05, but learning_rate is 0.0001",
        ),
        (
            nest("optimizer.params.betas", [0.9, 0.999]),
            {"adam_betas": [0.9, 0.95]},
            "deepspeed.optimizer.params.betas is [0.9, 0.999], but adam_betas is (0.9, 0.95)",
        ),
        (
            nest("scheduler.type", "WarmupLR"),
            {"lr_schedule": "cosine"},
            "deepspeed.scheduler.type is 'WarmupLR', but lr_schedule is 'cosine'",
        ),
        (
            {
                "optimizer": {"params": {"lr": 1e-5}},
                "scheduler": {"params": {"warmup_max_lr": 1e-4}},
            },
            {},
            "deepspeed.scheduler.params.warmup_max_lr is 0.0001, but learning_rate is 1e-05",
        ),
        (
            nest("zero_optimization.offload_param.device", "cpu"),
            {"offload_parameters": False},
            "deepspeed.zero_optimization.offload_param.device is 'cpu', but offload_parameters is "
            "False",
        ),
        (
            nest("bf16.enabled", True),
            {"precision": "fp32"},
            "deepspeed's bf16.enabled and fp16.enabled mean bf16, but precision is 'fp32'",
        ),
        (
            {"bf16": {"enabled": False}, "fp16": {"enabled": "auto"}},
            {"precision": "bf16"},
            "precision is 'bf16'",
        ),
        (
            {"bf16": {"enabled": True}, "fp16": {"enabled": True}},
            {},
            "deepspeed has both bf16.enabled and fp16.enabled: enable one of them",
        ),
        (
            {"zero_optimization": NVME},
            {},
            "deepspeed.zero_optimization.offload_optimizer.device is 'nvme', expected 'cpu' or "
            "'none'",
        ),
        (
            nest("scheduler.type", "OneCycle"),
            {},
            "deepspeed.scheduler.type is 'OneCycle', expected one of ['WarmupCosineLR', "
            "'WarmupDecayLR', 'WarmupLR']",
        ),
        (
            nest("scheduler.params.warmup_num_steps", 100),
            {},
            "deepspeed.scheduler.params.warmup_num_steps is 100: set warmup_steps instead, and it "
            "to 'auto'",
        ),
        (
            nest("scheduler.params.total_num_steps", 100),
            {},
            "deepspeed.scheduler.params.total_num_steps is 100: set max_steps instead",
        ),
        (
            nest("optimizer.type", "OneBitAdam"),
            {},
            "deepspeed.optimizer.type is 'OneBitAdam': AdamW is the only optimizer",
        ),
        (
            nest("elasticity.enabled", True),
            {},
            "deepspeed.elasticity is not supported: the number of workers is set by 'num_workers' "
            "and 'min_workers'",
        ),
        (
            nest("checkpoint.load_universal", True),
            {},
            "deepspeed.checkpoint.load_universal is not supported",
        ),
        (
            nest("steps_per_print", "auto"),
            {},
            "deepspeed.steps_per_print is 'auto', which cannot be filled in: give a value",
        ),
        (
            nest("zero_optimization.offload_param.device", "cpu"),
            {"zero_stage": 2},
            "offload_parameters needs zero_stage 3, which alone shards parameters; it is 2",
        ),
        (["stage"], {}, "deepspeed is ['stage'], expected keys and values, or a file of them"),
        ("ds.json", {}, "deepspeed is 'ds.json', expected keys and values, or a file of them"),
        (
            {"zero_optimization": {"stage": 7}},
            {},
            "zero_stage is 7: it should be 0, 1, 2 or 3",
        ),
        (nest("optimizer.params.betas", 0.9), {}, "deepspeed.optimizer.params.betas"),
        (nest("scheduler.type", ["WarmupLR"]), {}, "deepspeed.scheduler.type"),
        ({"zero_optimization": True}, {}, "deepspeed.zero_optimization is True"),
        ({"bf16": True}, {"precision": "fp32"}, "deepspeed.bf16 is True"),
    ],
)
def test_contradiction_of_spec_is_rejected_by_name(
    config: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        make_spec(config, **settings)
    assert message in describe_validation_error(caught.value)


def test_precision_auto_uses_deepspeed_config() -> None:
    assert make_spec(nest("bf16.enabled", True), precision="auto").precision == "bf16"


def test_train_batch_size_mismatch_is_explained() -> None:
    config = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4}
    assert make_spec(config, gradient_accumulation_steps=4).micro_batch_size == 4
    with pytest.raises(ValidationError) as caught:
        make_spec(config, gradient_accumulation_steps=2)
    assert (
        "deepspeed.train_batch_size is 32, but micro batch 4 × accumulation 2 × 2 workers = 16: "
        "change one of them, or set it to 'auto'" in describe_validation_error(caught.value)
    )
    with pytest.raises(ValidationError) as caught:
        make_spec({"train_batch_size": 32})
    assert (
        "deepspeed.train_batch_size is 32, but how many rows a micro batch has is left to "
        "micro_batch_tokens: set micro_batch_size" in describe_validation_error(caught.value)
    )


def test_other_deepspeed_keys_are_passed_through() -> None:
    config = {
        "steps_per_print": 7,
        "communication_data_type": "fp32",
        "zero_optimization": {
            "stage": 2,
            "round_robin_gradients": True,
            "reduce_bucket_size": 12345,
            "overlap_comm": True,
        },
        "fp16": {"initial_scale_power": 8},
        "flops_profiler": {"enabled": True, "detailed": False},
        "of_a_later_release": {"some": {"depth": [1, 2]}},
    }
    built = build_deepspeed_config(make_spec(config), 2, hidden_size=8)
    for key in ("steps_per_print", "communication_data_type", "flops_profiler"):
        assert built[key] == config[key]
    assert built["of_a_later_release"] == {"some": {"depth": [1, 2]}}
    assert built["fp16"] == {"enabled": False, "initial_scale_power": 8}
    assert built["zero_optimization"] == {
        "stage": 2,
        "contiguous_gradients": True,
        "overlap_comm": True,
        "reduce_bucket_size": 12345,
        "round_robin_gradients": True,
    }


def test_disabled_offloading_removes_its_settings() -> None:
    config = {"zero_optimization": {"offload_optimizer": {"device": "none", "pin_memory": True}}}
    zero = build_deepspeed_config(make_spec(config), 2, hidden_size=8)["zero_optimization"]
    assert "offload_optimizer" not in zero
    config["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    zero = build_deepspeed_config(make_spec(config), 2, hidden_size=8)["zero_optimization"]
    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": False}


@pytest.mark.parametrize("config", [ZERO_2, ZERO_3, {}, {"bf16": {"enabled": True}}])
def test_spec_round_trips_through_json(config: dict[str, Any]) -> None:
    spec = make_spec(config, gradient_accumulation_steps=2)
    assert TrainingSpec.model_validate_json(spec.model_dump_json()) == spec
    assert TrainingSpec.model_validate(json.loads(json.dumps(spec.model_dump(mode="json")))) == spec


@pytest.mark.parametrize(
    ("world_size", "accumulation"), list(product((1, 2, 3, 4), (1, 4))), ids=str
)
def test_train_batch_size_matches_for_any_number_of_workers(
    world_size: int, accumulation: int
) -> None:
    spec = make_spec({}, num_workers=2, gradient_accumulation_steps=accumulation)
    built = build_deepspeed_config(spec, world_size, hidden_size=8)
    rounds = built["gradient_accumulation_steps"]
    assert built["train_micro_batch_size_per_gpu"] == 1
    assert built["train_batch_size"] == 1 * rounds * world_size
    assert (rounds - 1) * world_size < 2 * accumulation <= rounds * world_size


def test_num_shares_keeps_planned_steps_for_other_world_size() -> None:
    spec = make_spec({}, num_workers=4, gradient_accumulation_steps=3)
    built = build_deepspeed_config(spec, 4, hidden_size=8, num_shares=2)
    assert (built["gradient_accumulation_steps"], built["train_batch_size"]) == (2, 8)
    built = build_deepspeed_config(spec, 1, hidden_size=8, num_shares=2)
    assert (built["gradient_accumulation_steps"], built["train_batch_size"]) == (6, 6)


def test_rows_of_micro_batch_are_hidden_from_deepspeed() -> None:
    config = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4}
    spec = make_spec(config, gradient_accumulation_steps=4)
    built = build_deepspeed_config(spec, 2, hidden_size=8)
    assert (built["train_batch_size"], built["train_micro_batch_size_per_gpu"]) == (8, 1)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_config_is_built_from_spec_alone(stage: int) -> None:
    precision = "fp16" if stage else "bf16"
    spec = make_spec({}, zero_stage=stage, precision=precision, max_grad_norm=0.5)
    built = build_deepspeed_config(spec, 2, hidden_size=8, load_universal=True)
    assert built["zero_optimization"]["stage"] == stage
    assert built["bf16"] == {"enabled": stage == 0}
    assert built["fp16"] == {"enabled": stage > 0}
    assert built["gradient_clipping"] == 0.5
    assert built["checkpoint"] == {"load_universal": True}
    assert "checkpoint" not in build_deepspeed_config(spec, 2, hidden_size=8)


def write_spec(folder: Path, deepspeed: Any) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "spec.yaml"
    file.write_text(json.dumps({"base_model": "m", "train_file": "f", "deepspeed": deepspeed}))
    return file


def test_config_file_path_is_relative_to_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_spec(tmp_path / "specs", "parts/ds.json")
    (tmp_path / "specs" / "parts").mkdir()
    (tmp_path / "specs" / "parts" / "ds.json").write_text(json.dumps(ZERO_2))
    monkeypatch.chdir(tmp_path)
    assert load_spec(Path("specs/spec.yaml")).deepspeed == ZERO_2
    spec = write_spec(tmp_path / "specs", str(tmp_path / "specs" / "parts" / "ds.json"))
    assert load_spec(spec).zero_stage == 2


def test_config_file_path_may_be_in_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "ds.json").write_text(json.dumps(ZERO_2))
    assert load_spec(write_spec(tmp_path / "specs", "~/ds.json")).zero_stage == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no DeepSpeed configuration at '.*ds.json': No such file"),
        ("{'stage': 2}", "'.*ds.json' is not JSON: "),
        ("\x00\xff", "'.*ds.json' is not JSON: "),
        ("[1]", r"spec.yaml: deepspeed is \[1\], expected keys and values"),
        ('{"zero_optimization": {"stage": "2"}}', 'spec.yaml: zero_stage is "2"'),
    ],
)
def test_invalid_config_file_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "ds.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=f"^{message}"):
        load_spec(write_spec(tmp_path, "ds.json"))
