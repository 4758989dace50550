"""Consolidation of shards in DeepSpeed's layout, written from a model with known weights.

`tests/e2e/test_architectures.py` does the same with shards written by DeepSpeed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, MixtralConfig

from storage import durable
from storage.manifest import verify_directory
from tests.tiny_model import build_tiny_model
from tests.written_checkpoint import (
    ALIASES,
    EMBEDDING,
    HEAD,
    make_probe,
    start_checkpoint,
    write_sharded,
    write_whole,
)
from training.checkpoint.reference_logits import PROBE_NAME
from training.export import consolidate
from training.export.consolidate import consolidate_checkpoint
from training.export.plan import ConsolidationError, build_meta_model, plan_exports
from training.export.verification import RejectedError
from training.export.zero_shards import ShardsError, open_weights

REJECTED = "^the consolidated model is not what was trained: "


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def trained(base: Path) -> Any:
    """The trained model, with other weights than the base model."""
    model = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.manual_seed(3))
    return model.eval()


def export(checkpoint: Path, base: Path, output: Path, **options: Any) -> dict[str, torch.Tensor]:
    consolidate_checkpoint(checkpoint, str(base), output, **{"dtype": torch.float32, **options})
    tensors: dict[str, torch.Tensor] = {}
    for file in output.glob("*.safetensors"):
        tensors |= load_file(file)
    return tensors


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_consolidated_shards_equal_weights(
    base: Path, trained: Any, tmp_path: Path, world_size: int
) -> None:
    checkpoint = write_sharded(tmp_path / "c", trained, world_size, frozen="model.layers.0.mlp")
    found = export(checkpoint, base, tmp_path / "model")
    expected = {name: p for name, p in trained.named_parameters() if name != "lm_head.weight"}
    assert found.keys() == expected.keys()
    for name, parameter in expected.items():
        assert torch.equal(found[name], parameter), name


def test_files_respect_shard_size_limit(base: Path, trained: Any, tmp_path: Path) -> None:
    checkpoint = write_whole(tmp_path / "c", trained)
    found = export(checkpoint, base, tmp_path / "model", shard_bytes=20_000)
    assert all(torch.equal(found[name], p) for name, p in trained.named_parameters())
    index = durable.read_json(tmp_path / "model" / "model.safetensors.index.json")
    assert set(index["weight_map"]) == set(found)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in found.values())
    files = list((tmp_path / "model").glob("*.safetensors"))
    assert len(files) > 3
    largest = max(tensor.nbytes for tensor in found.values())
    assert all(file.stat().st_size < max(20_000, largest) + 4096 for file in files)
    verify_directory(tmp_path / "model")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_model_is_written_in_requested_dtype(
    base: Path, trained: Any, tmp_path: Path, dtype: torch.dtype
) -> None:
    checkpoint = write_sharded(tmp_path / "c", trained, 2)
    found = export(checkpoint, base, tmp_path / "model", dtype=dtype, trained_in=torch.float32)
    assert torch.equal(found[EMBEDDING], trained.get_input_embeddings().weight.to(dtype))
    config = durable.read_json(tmp_path / "model" / "config.json")
    assert config["dtype"] == str(dtype).removeprefix("torch.")
    report = durable.read_json(tmp_path / "model" / "verification.json")
    assert report["passed"] is True
    assert [check["name"] for check in report["checks"]] == [
        "values",
        "settings",
        "loads",
        "logits",
    ]


def test_progress_is_reported_in_bytes(base: Path, trained: Any, tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    checkpoint = write_whole(tmp_path / "c", trained)
    found = export(
        checkpoint, base, tmp_path / "m", on_progress=lambda *figures: progress.append(figures)
    )
    total = sum(tensor.nbytes for tensor in found.values())
    assert progress[-1] == (total, total)
    assert progress == sorted(progress)


def break_file(shards: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    (shards / name).write_bytes(change((shards / name).read_bytes()))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "zero_pp_rank_1_mp_rank_00_optim_states.pt",
            None,
            "2 workers wrote this checkpoint, and the optim_states of rank 1 are missing$",
        ),
        (
            "zero_pp_rank_0_mp_rank_00_optim_states.pt",
            None,
            "several workers wrote this checkpoint, and the optim_states of rank 0 are missing$",
        ),
        (
            "zero_pp_rank_0_mp_rank_00_model_states.pt",
            None,
            "the checkpoint lacks 'zero_pp_rank_0_mp_rank_00_model_states.pt'$",
        ),
        (
            "zero_pp_rank_1_mp_rank_00_optim_states.pt",
            lambda content: content[: len(content) // 2],
            "'zero_pp_rank_1_mp_rank_00_optim_states.pt' cannot be read, it is damaged",
        ),
        (
            "zero_pp_rank_0_mp_rank_00_model_states.pt",
            lambda content: b"",
            "'zero_pp_rank_0_mp_rank_00_model_states.pt' cannot be read, it is damaged",
        ),
    ],
)
def test_broken_shard_file_is_named_and_output_is_removed(
    base: Path,
    trained: Any,
    tmp_path: Path,
    name: str,
    change: Callable[[bytes], bytes] | None,
    message: str,
) -> None:
    checkpoint = write_sharded(tmp_path / "c", trained, 2)
    if change is None:
        (checkpoint / "state" / name).unlink()
    else:
        break_file(checkpoint / "state", name, change)
    with pytest.raises(ShardsError, match=f"^{message}"):
        export(checkpoint, base, tmp_path / "out" / "model")
    assert list((tmp_path / "out").iterdir()) == []


def test_weights_that_do_not_match_architecture_are_named(
    base: Path, trained: Any, tmp_path: Path
) -> None:
    extra = write_whole(tmp_path / "extra", trained, **{"model.more": torch.ones(2)})
    with pytest.raises(
        ConsolidationError, match=r"^the architecture has no place for \['model\.more'\]$"
    ):
        export(extra, base, tmp_path / "m")
    other = write_whole(tmp_path / "other", trained, **{"model.norm.weight": torch.ones(3)})
    with pytest.raises(ConsolidationError, match=r"^'model\.norm\.weight' has the shape \(3,\)"):
        export(other, base, tmp_path / "m")
    shards = start_checkpoint(tmp_path / "less", trained)
    module = {name: t for name, t in trained.state_dict().items() if name != "model.norm.weight"}
    states = {"module": module, "buffer_names": [], "shared_params": ALIASES}
    torch.save(states, shards / "mp_rank_00_model_states.pt")
    with pytest.raises(
        ConsolidationError, match=r"^the checkpoint has no weight 'model\.norm\.weight'$"
    ):
        export(shards.parent, base, tmp_path / "m")


def damage_weights(trained: Any, value: float) -> dict[str, torch.Tensor]:
    name = "model.layers.1.mlp.down_proj.weight"
    damaged = trained.state_dict()[name].clone()
    damaged.fill_(value) if value == 0 else damaged[3, 5:6].fill_(value)
    return {name: damaged}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), r"values that are not finite in model\.layers\.1\.mlp\.down_proj\.weight"),
        (float("inf"), r"values that are not finite in model\.layers\.1\.mlp\.down_proj\.weight"),
        (0.0, r"nothing but zeros in model\.layers\.1\.mlp\.down_proj\.weight"),
        (50.0, r"logits differ from those in training by .* of their norm, 0\.0001 allowed"),
    ],
)
def test_model_that_fails_verification_is_rejected(
    base: Path, trained: Any, tmp_path: Path, value: float, message: str
) -> None:
    checkpoint = write_whole(tmp_path / "c", trained, **damage_weights(trained, value))
    for _ in range(2):  # the second attempt replaces the rejected model of the first
        with pytest.raises(RejectedError, match=f"{REJECTED}{message}"):
            export(checkpoint, base, tmp_path / "out" / "model")
    (rejected,) = (tmp_path / "out").iterdir()
    assert rejected.name == "model.rejected"
    report = durable.read_json(rejected / "verification.json")
    assert report["passed"] is False
    assert not durable.is_published(rejected)


def test_zero_weights_of_training_pass_verification(
    base: Path, trained: Any, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(base)
    model.load_state_dict({**trained.state_dict(), **damage_weights(trained, 0.0)})
    checkpoint = write_whole(tmp_path / "c", model)
    make_probe(model, frozenset(damage_weights(trained, 0.0))).write(checkpoint / PROBE_NAME)
    export(checkpoint, base, tmp_path / "m")


def test_untied_weights_are_both_written(base: Path, trained: Any, tmp_path: Path) -> None:
    """A base model whose file has both weights, with different values, is trained with both."""
    untied = AutoModelForCausalLM.from_config(trained.config)
    untied.lm_head.weight = torch.nn.Parameter(untied.lm_head.weight.detach().clone())
    untied.load_state_dict({**trained.state_dict(), HEAD: trained.state_dict()[HEAD] * 2})
    shards = start_checkpoint(tmp_path / "c", untied.eval())
    states = {"module": untied.state_dict(), "buffer_names": [], "shared_params": {}}
    torch.save(states, shards / "mp_rank_00_model_states.pt")
    found = export(tmp_path / "c", base, tmp_path / "model")
    assert torch.equal(found[HEAD], found[EMBEDDING] * 2)


def build_mixture(base: Path, folder: Path) -> Any:
    """Build a mixture of experts with at least 10 layers and experts, for two-digit indices."""
    config = MixtralConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=12,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=11,
        num_experts_per_tok=2,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return model.eval()


def test_experts_are_converted_one_at_a_time(base: Path, tmp_path: Path) -> None:
    """Only one expert is in memory at a time, although the model stores many in one tensor."""
    model = build_mixture(base, tmp_path / "expected")
    checkpoint = write_sharded(tmp_path / "c", model, 3)
    weights = open_weights(checkpoint / "state")
    exports = plan_exports(weights, build_meta_model(model.config, torch.float32), torch.float32)
    largest = max(
        sum(source.shape.numel() for source in export.sources.values())
        for export in exports
        if export.converted_names
    )
    assert largest == 2 * 24 * 16, "gate and up projection of one expert"

    found = export(checkpoint, tmp_path / "expected", tmp_path / "model", shard_bytes=50_000)
    expected = load_file(tmp_path / "expected" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_expert_with_only_zeros_is_rejected(base: Path, tmp_path: Path) -> None:
    model = build_mixture(base, tmp_path / "base")
    experts = "model.layers.10.mlp.experts.gate_up_proj"
    with torch.no_grad():
        model.get_parameter(experts)[7] = 0
    checkpoint = write_sharded(tmp_path / "c", model, 2)
    with pytest.raises(
        RejectedError,
        match=rf"{REJECTED}nothing but zeros in {experts}\[7\], which had other values before",
    ):
        export(checkpoint, tmp_path / "base", tmp_path / "model")
    make_probe(model, frozenset({f"{experts}[7]"})).write(checkpoint / PROBE_NAME)
    export(checkpoint, tmp_path / "base", tmp_path / "model")


def test_unknown_shard_format_raises_shards_error(base: Path, trained: Any, tmp_path: Path) -> None:
    checkpoint = write_sharded(tmp_path / "c", trained, 2)
    torch.save({"odd": 1}, checkpoint / "state" / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    with pytest.raises(ShardsError, match="^'state' is not what DeepSpeed writes: KeyError: "):
        export(checkpoint, base, tmp_path / "model")


def test_model_that_does_not_load_is_rejected(
    base: Path, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("odd")

    checkpoint = write_whole(tmp_path / "c", trained)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
    with pytest.raises(RejectedError, match=f"{REJECTED}it does not load: 'odd'"):
        export(checkpoint, base, tmp_path / "model")


def test_fp32_export_uses_master_weights(trained: Any, tmp_path: Path) -> None:
    """At ZeRO stages 1 and 2, each rank has a range of the group that may split parameters."""
    rounded = AutoModelForCausalLM.from_config(trained.config).to(torch.bfloat16)
    checkpoint = write_whole(tmp_path / "c", rounded)
    named = dict(trained.named_parameters())
    flat = torch.cat([parameter.detach().flatten() for parameter in named.values()])
    middle = flat.numel() // 2
    for rank, (begin, end) in enumerate([(0, middle), (middle, flat.numel())]):
        mapping, offset = {}, 0
        for name, parameter in named.items():
            first, last = max(begin, offset), min(end, offset + parameter.numel())
            if first < last:
                mapping[name] = Fragment(last - first, first - begin)
            offset += parameter.numel()
        state = {
            "partition_count": [2],
            "param_slice_mappings": [mapping],
            "single_partition_of_fp32_groups": [flat[begin:end].clone()],
        }
        file = checkpoint / "state" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": state}, file)
    weights = open_weights(checkpoint / "state", in_fp32=True)
    for name, parameter in named.items():
        found = torch.empty(parameter.numel())
        weights.tensors[name].copy_into(found)
        assert torch.equal(found, parameter.flatten()), name
    stored = open_weights(checkpoint / "state").tensors[EMBEDDING]
    assert stored.dtype == torch.bfloat16


class Fragment:
    """The position of a part of a parameter, with DeepSpeed's attribute names."""

    def __init__(self, numel: int, start: int) -> None:
        self.numel, self.start = numel, start


def test_command_line_prints_verification(
    base: Path, trained: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = write_sharded(tmp_path / "c", trained, 2)
    command = [str(checkpoint), str(tmp_path / "model")]
    for more, message in (([], "say --base-model"), (["--shard-mb", "0"], "above zero")):
        with pytest.raises(SystemExit):
            consolidate.main([*command, *more])
        assert message in " ".join(capsys.readouterr().err.split())
    assert consolidate.main([*command, "--base-model", str(base), "--dtype", "fp32"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'model'}\n"
    assert "logits differ from those in training by" in captured.err
    assert consolidate.main([*command, "--base-model", str(base)]) == 1
    assert "it was not changed" in " ".join(capsys.readouterr().err.split())
