"""Pipelines compared with one process, and with themselves after a resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.multiprocessing.spawn import ProcessRaisedException
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from storage import durable
from tests.e2e.test_equality import differ
from tests.e2e.training_group import Case, Trained, train_in_group, train_plainly, write_table
from tests.tiny_model import build_tiny_model
from tests.training_process import (
    finish,
    kill,
    read_messages,
    read_steps,
    start,
    wait_for_step,
    write_inputs,
)
from training.checkpoint.format import find_shards
from training.checkpoint.reference_logits import make_prompt
from training.export.consolidate import consolidate_checkpoint
from training.export.zero_shards import open_weights

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("forked_workers")]

NUM_LAYERS = 4
MODELS = ("llama-tied", "llama-untied", "gpt2-tied", "gpt2-untied")
DROPOUT_MODEL = "gpt2-dropout"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline")
    tokenizer = AutoTokenizer.from_pretrained(build_tiny_model(folder / "tiny"))
    for name in (*MODELS, DROPOUT_MODEL):
        model = build_model(name, len(tokenizer))
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    write_table(folder / "rows.arrow")
    return folder


def build_model(name: str, vocabulary: int) -> Any:
    is_tied = not name.endswith("-untied")
    dropout = 0.1 if name == DROPOUT_MODEL else 0.0
    if name.startswith("gpt2"):
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=vocabulary,
                n_positions=128,
                n_embd=32,
                n_layer=NUM_LAYERS,
                n_head=4,
                bos_token_id=None,
                eos_token_id=1,
                resid_pdrop=dropout,
                embd_pdrop=dropout,
                attn_pdrop=dropout,
                tie_word_embeddings=is_tied,
            )
        )
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=NUM_LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            tie_word_embeddings=is_tied,
        )
    )


def make_case(
    folder: Path, name: str, num_stages: int, num_replicas: int = 1, **changes: Any
) -> Case:
    settings = {
        "base_model": str(folder / name),
        "strategy": "pipeline",
        "num_workers": num_stages * num_replicas,
        "pipeline_stages": num_stages,
        "gradient_accumulation_steps": 3,
        **changes.pop("settings", {}),
    }
    return Case(settings, num_shares=num_replicas, **changes)


@pytest.mark.computes
@pytest.mark.long
def test_pipelines_equal_one_process_and_are_consolidated(folder: Path) -> None:
    plain = {name: train_plainly(folder, make_case(folder, name, 2, last=6)) for name in MODELS}
    with_dropout = []
    for num_stages in (2, 3):
        cases = [
            make_case(
                folder,
                name,
                num_stages,
                last=6,
                save_after=6,
                saves_probe=True,
                checkpoint=folder / f"{name}-{num_stages}",
                settings={"activation_checkpointing": num_stages == 3},
            )
            for name in (*MODELS, DROPOUT_MODEL)
        ]
        *trained, last = train_in_group(num_stages, folder, cases)
        with_dropout.append(last)
        for name, case, found in zip(MODELS, cases, trained, strict=False):
            differences = differ(found, plain[name])
            print(num_stages, name, differences)
            assert differences["loss"] < 1e-4
            assert differences["grad_norm"] < 1e-4
            check_consolidated(case, plain[name])
    assert with_dropout[0].losses == pytest.approx(with_dropout[1].losses, rel=1e-5)
    assert with_dropout[0].losses != pytest.approx(plain["gpt2-tied"].losses, rel=1e-3)


def check_consolidated(case: Case, plain: Trained) -> None:
    """Compare the logits of the consolidated model with those of the plain loop's model."""
    assert case.checkpoint is not None
    output = case.checkpoint.with_name(f"{case.checkpoint.name}-model")
    base_model = case.settings["base_model"]
    verification = consolidate_checkpoint(case.checkpoint, base_model, output, dtype=torch.float32)
    assert {check.passed for check in verification.checks} == {True}
    model = AutoModelForCausalLM.from_pretrained(output)
    expected = AutoModelForCausalLM.from_pretrained(base_model)
    assert set(load_file(output / "model.safetensors")) == set(
        load_file(Path(base_model) / "model.safetensors")
    )
    expected.load_state_dict(plain.parameters, strict=False)
    ids = make_prompt(model.config)["input_ids"]
    with torch.no_grad():
        logits, reference = model(ids).logits, expected(ids).logits
    assert float((logits - reference).norm() / reference.norm()) < 1e-4


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama-tied", {}),
    ("llama-untied", {"precision": "bf16", "pipeline_partition": "time"}),
    (DROPOUT_MODEL, {"activation_checkpointing": True, "pipeline_partition": "uniform"}),
]


@pytest.mark.computes
@pytest.mark.long
def test_replicas_resume_exactly(folder: Path) -> None:
    """Two replicas of two stages; one of the models has dropout."""

    def make_cases(**changes: Any) -> list[Case]:
        return [
            make_case(
                folder,
                name,
                2,
                2,
                last=8,
                checkpoint=folder / f"variant-{number}",
                settings=settings,
                **changes,
            )
            for number, (name, settings) in enumerate(VARIANTS)
        ]

    whole = train_in_group(4, folder, make_cases(save_after=4))
    resumed = train_in_group(4, folder, make_cases(first=4, saved_by=4))
    for before, after in zip(whole, resumed, strict=True):
        assert after.losses == before.losses[4:]
        assert after.grad_norms == before.grad_norms[4:]
        for name, parameter in before.parameters.items():
            assert torch.equal(after.parameters[name], parameter), name
    for (name, _), found, tolerance in zip(VARIANTS, whole, (1e-4, 1e-2), strict=False):
        plain = train_plainly(folder, make_case(folder, name, 2, 2, last=8))
        assert found.losses == pytest.approx(plain.losses, rel=tolerance)
    check_master_weights(folder / "variant-1", folder / "llama-untied")


def check_master_weights(checkpoint: Path, base_model: Path) -> None:
    """Check that a pipeline trained in bf16 is exported in fp32 from its master weights."""
    output = checkpoint.with_name(f"{checkpoint.name}-model")
    consolidate_checkpoint(
        checkpoint,
        str(base_model),
        output,
        dtype=torch.float32,
        trained_in=torch.bfloat16,
    )
    exported = load_file(output / "model.safetensors")
    rounded = open_weights(find_shards(checkpoint)).tensors
    for name, weights in exported.items():
        target = torch.empty(weights.numel(), dtype=torch.bfloat16)
        rounded[name].copy_into(target)
        assert torch.equal(weights.flatten().bfloat16(), target), name
        assert not torch.equal(weights.flatten(), target.float()), name


@pytest.mark.computes
@pytest.mark.long
def test_loss_that_is_not_finite_is_refused(folder: Path) -> None:
    model = build_model("llama-untied", vocabulary=384)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.fill_(torch.inf)
    model.save_pretrained(folder / "infinite")
    case = make_case(folder, "infinite", 2, last=1)
    with pytest.raises(ProcessRaisedException, match="the loss of step 1 is nan, on the rows of"):
        train_in_group(2, folder, [case])


@pytest.mark.trains
def test_killed_run_takes_the_same_steps(tmp_path: Path) -> None:
    """Two stages, killed once, and one process with ZeRO, both on Ray.

    `test_replicas_resume_exactly` compares a pipeline with itself.
    """
    folder = write_inputs(tmp_path)
    settings: dict[str, Any] = {
        "precision": "fp32",
        "epochs": 1,
        "learning_rate": 0.001,
        "gradient_accumulation_steps": 2,
        "batch_layout": "padded",  # as in stages
    }
    with start(folder, "alone", num_workers=1, **settings) as process:
        assert finish(process) == 0
    with start(folder, "killed", strategy="pipeline", **settings) as process:
        wait_for_step(folder, "killed", 8, process)
        kill(process)
    alone = read_steps(folder, "alone")
    assert len(read_steps(folder, "killed")) < len(alone)
    with start(folder, "killed", strategy="pipeline", **settings) as process:
        assert finish(process) == 0
    found = read_steps(folder, "killed")
    messages = read_messages(folder, "killed")
    assert sum(message.startswith("Resuming after step") for message in messages) == 1
    for name in ("loss", "grad_norm", "eval_loss"):
        values = [step[name] for step in alone if name in step]
        assert [step[name] for step in found if name in step] == pytest.approx(values, rel=1e-4)
    assert durable.read_json(folder / "killed" / "model" / "verification.json")["passed"]
