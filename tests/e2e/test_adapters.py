"""Adapters compared with a plain loop of PEFT, and with themselves after a resume."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from model_files.weight_headers import ADAPTER_WEIGHTS_NAME
from storage import durable
from tests.e2e.test_equality import differ
from tests.e2e.training_group import (
    Case,
    Trained,
    make_spec,
    train_in_group,
    train_plainly,
    write_table,
)
from tests.peft_adapters import write_adapter
from tests.tiny_model import build_tiny_model
from tests.training_process import finish, read_steps, start, write_inputs
from training.checkpoint.format import find_shards
from training.checkpoint.reference_logits import make_prompt, read_probe
from training.export.adapter import export_adapter
from training.export.merged import export_merged
from training.export.zero_shards import open_weights
from training.settings.continued_adapter import continue_settings
from training.task import open_default_objective

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("forked_workers")]

TARGETS = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
KINDS = ("lora", "dora", "rslora", "lora-pissa", "rslora-pissa", "lora-olora", "rslora-olora")
"""Methods of adapters, and what they start from."""
STRATEGIES: list[dict[str, Any]] = [
    {"zero_stage": 0},
    {"zero_stage": 2},
    {"zero_stage": 3},
]


ROUNDING = 2e-5  # of sums in fp32, relative to the largest logit, which is about 16 here


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    build_tiny_model(folder / "tiny")
    write_table(folder / "rows.arrow")
    return folder


def make_case(kind: str, strategy: dict[str, Any], **changes: Any) -> Case:
    method, _, init = kind.partition("-")
    adapter = {"method": method, "rank": 4, "init": init or "default"}
    # From the base weights, steps of 0.01 multiply rounding by up to 100 in ten steps.
    rate = 0.001 if init else 0.01
    return Case({"adapter": adapter, "learning_rate": rate, **strategy}, **changes)


def train_with_peft(folder: Path, case: Case) -> Trained:
    """Compute the steps of a case with PEFT in one process."""
    base = AutoModelForCausalLM.from_pretrained(folder / "tiny", dtype=torch.float32)
    method, init = case.settings["adapter"]["method"], case.settings["adapter"]["init"]
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=TARGETS,
        use_dora=method == "dora",
        use_rslora=method == "rslora",
        init_lora_weights=True if init == "default" else init,
    )
    torch.manual_seed(0)
    trained = train_plainly(folder, case, get_peft_model(base, config))
    learned = {
        name.removeprefix("base_model.model."): one
        for name, one in trained.parameters.items()
        if "lora_" in name
    }
    return replace(trained, parameters=learned)


def differ_from(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference of logits, relative to the largest logit."""
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.computes
@pytest.mark.parametrize("world_size", [1, 2])
def test_losses_equal_those_of_peft(folder: Path, world_size: int) -> None:
    cases = [
        make_case(kind, strategy, num_shares=world_size)
        for kind in KINDS
        for strategy in STRATEGIES
    ]
    plain = [train_with_peft(folder, make_case(kind, {}, num_shares=world_size)) for kind in KINDS]
    for number, found in enumerate(train_in_group(world_size, folder, cases)):
        case, expected = cases[number], plain[number // len(STRATEGIES)]
        learned = [one for name, one in expected.parameters.items() if "lora_B" in name]
        assert learned
        assert min(float(one.norm()) for one in learned) > 0.01  # they start at zero
        differences = differ(found, expected)
        print(world_size, case.settings, differences)
        assert differences["loss"] < 1e-4, case
        assert differences["parameter"] < 1e-3, case


@pytest.mark.computes
def test_continued_adapter_equals_one_of_peft(folder: Path, tmp_path: Path) -> None:
    cases, plain = [], []
    for kind in ("lora", "dora", "rslora"):
        method = {"use_dora": kind == "dora", "use_rslora": kind == "rslora"}
        base = folder / "tiny"
        adapter = write_adapter(base, tmp_path / kind, target_modules=TARGETS, **method)
        settings = {
            "adapter": continue_settings(adapter, {}),
            "base_adapter": str(adapter),
            "learning_rate": 0.001,  # from large values, steps of 0.01 multiply rounding
        }
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        peft = PeftModel.from_pretrained(model, str(adapter), is_trainable=True)
        continued = [make_case(kind, strategy, num_shares=2) for strategy in STRATEGIES]
        continued = [replace(case, settings={**case.settings, **settings}) for case in continued]
        cases += continued
        plain.append(train_plainly(folder, continued[0], peft))
    for number, found in enumerate(train_in_group(2, folder, cases)):
        expected = plain[number // len(STRATEGIES)]
        assert found.losses == pytest.approx(expected.losses, abs=1e-4), cases[number]
    fresh = train_in_group(1, folder, [make_case("lora", STRATEGIES[0], num_shares=2)])[0]
    assert abs(fresh.losses[0] - plain[0].losses[0]) > 0.1  # the start makes a difference


@pytest.mark.computes
@pytest.mark.parametrize("world_size", [1, 2])
def test_resumed_adapter_equals_uninterrupted_one(
    folder: Path, tmp_path: Path, world_size: int
) -> None:
    def make_cases(**changes: Any) -> list[Case]:
        return [
            make_case(kind, strategy, checkpoint=tmp_path / f"{kind}-{number}", **changes)
            for kind in ("lora", "dora", "lora-pissa", "rslora-olora")
            for number, strategy in enumerate(STRATEGIES)
        ]

    whole = train_in_group(2, folder, make_cases(save_after=5))
    resumed = train_in_group(world_size, folder, make_cases(first=5, saved_by=2))
    for case, found, expected in zip(make_cases(), resumed, whole, strict=True):
        if world_size == 2:
            assert found.losses == expected.losses[5:], case
            for name, tensor in expected.parameters.items():
                assert torch.equal(found.parameters[name], tensor), (case, name)
        else:
            assert found.losses == pytest.approx(expected.losses[5:], rel=1e-4), case
        assert case.checkpoint is not None
        stored = open_weights(find_shards(case.checkpoint)).tensors
        names = [name for name, one in stored.items() if not one.is_buffer]
        assert names
        assert all("lora_" in name for name in names), names


@pytest.mark.computes
def test_exported_adapter_has_the_logits_of_training(folder: Path, tmp_path: Path) -> None:
    cases = [
        make_case(kind, strategy, checkpoint=tmp_path / f"{kind}-{number}", save_after=10)
        for kind in KINDS
        for number, strategy in enumerate(STRATEGIES)
    ]
    cases = [replace(case, saves_probe=True) for case in cases]
    train_in_group(2, folder, cases)
    for case in cases:
        assert case.checkpoint is not None
        spec = make_spec(folder, case)
        assert spec.adapter is not None
        output = tmp_path / f"{case.checkpoint.name}-exported"
        verification = export_adapter(
            case.checkpoint,
            spec,
            spec.adapter,
            output,
            dtype=torch.float32,
            objective=open_default_objective(),
        )
        assert verification.passed
        size = (output / ADAPTER_WEIGHTS_NAME).stat().st_size
        assert size < (folder / "tiny" / "model.safetensors").stat().st_size
        base = AutoModelForCausalLM.from_pretrained(folder / "tiny", dtype=torch.float32)
        prompt = make_prompt(base.config)
        with torch.no_grad():
            plain = base(**prompt).logits[0]
            model: Any = PeftModel.from_pretrained(base, str(output)).eval()
            adapted = model(**prompt).logits[0]
            merged = model.merge_and_unload()(**prompt).logits[0]
        probe = read_probe(case.checkpoint)
        assert probe is not None
        assert torch.allclose(adapted, probe.logits, atol=1e-4)
        assert differ_from(merged, adapted) < ROUNDING
        assert not torch.allclose(plain, adapted, atol=1e-2)
        whole = tmp_path / f"{case.checkpoint.name}-merged"
        verification = export_merged(
            case.checkpoint,
            spec,
            spec.adapter,
            whole,
            dtype=torch.float32,
            objective=open_default_objective(),
        )
        assert verification.passed
        complete = AutoModelForCausalLM.from_pretrained(whole)
        with torch.no_grad():
            assert differ_from(complete(**prompt).logits[0], adapted) < ROUNDING


@pytest.mark.computes
def test_start_from_the_base_weights_is_published_in_half_precision(
    folder: Path, tmp_path: Path
) -> None:
    settings = {"zero_stage": 3, "precision": "bf16"}
    cases = [
        make_case(kind, settings, checkpoint=tmp_path / kind, save_after=10, saves_probe=True)
        for kind in ("lora-pissa", "rslora-olora")
    ]
    train_in_group(2, folder, cases)
    for case in cases:
        spec = make_spec(folder, case)
        assert case.checkpoint is not None
        assert spec.adapter is not None
        verification = export_adapter(
            case.checkpoint,
            spec,
            spec.adapter,
            tmp_path / f"{case.checkpoint.name}-exported",
            dtype=torch.bfloat16,
            objective=open_default_objective(),
        )
        assert verification.passed


@pytest.mark.trains
def test_ddp_has_the_losses_of_zero(tmp_path: Path) -> None:
    """Ray Train starts both; with a start from the base weights, which rank 0 computes."""
    write_inputs(tmp_path)
    runs = []
    strategies: list[dict[str, Any]] = [{"zero_stage": 2}, {"strategy": "ddp"}]
    for strategy in strategies:
        output = "-".join(map(str, strategy.values()))
        settings = {**strategy, "precision": "fp32", "epochs": 1, "learning_rate": 0.001}
        with start(tmp_path, output, adapter={"rank": 4, "init": "pissa"}, **settings) as process:
            assert finish(process) == 0
        runs.append(read_steps(tmp_path, output))
        assert durable.read_json(tmp_path / output / "model" / "verification.json")["passed"]
        assert (tmp_path / output / "model" / ADAPTER_WEIGHTS_NAME).is_file()
    expected, found = runs
    assert len(found) > 5
    for name in ("loss", "grad_norm", "eval_loss"):
        values = [step[name] for step in expected if name in step]
        assert [step[name] for step in found if name in step] == pytest.approx(values, rel=1e-4)


@pytest.mark.computes
def test_merged_model_in_fp32_of_run_in_half_precision_is_accepted(
    folder: Path, tmp_path: Path
) -> None:
    case = make_case(
        "lora", {"zero_stage": 2}, checkpoint=tmp_path / "bf16", save_after=10, saves_probe=True
    )
    case.settings["precision"] = "bf16"
    train_in_group(1, folder, [case])
    spec = make_spec(folder, case)
    assert spec.adapter is not None
    assert case.checkpoint is not None
    for dtype in (torch.float32, torch.bfloat16):
        output = tmp_path / f"merged-{dtype}"
        objective = open_default_objective()
        verification = export_merged(
            case.checkpoint, spec, spec.adapter, output, dtype=dtype, objective=objective
        )
        assert verification.passed
        logits = next(check for check in verification.checks if check.name == "logits")
        assert logits.passed
        assert AutoModelForCausalLM.from_pretrained(output).dtype == dtype
