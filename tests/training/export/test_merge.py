"""An adapter merged into its base model is a complete model with the same logits."""

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.peft_adapters import load_with_peft, write_adapter
from tests.tiny_model import build_tiny_model
from training.export import merge
from training.export.merge import merge_adapter
from training.export.plan import ConsolidationError
from training.export.verification import RejectedError

IDS = torch.tensor([[5, 9, 13, 7, 22, 31, 5, 6]])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("base") / "base")


@pytest.mark.parametrize("settings", [{}, {"use_dora": True, "target_modules": "all-linear"}])
def test_merged_model_has_the_logits_of_the_adapter(
    settings: dict[str, Any], base: Path, tmp_path: Path
) -> None:
    adapter = write_adapter(base, tmp_path / "adapter", **settings)
    verification = merge_adapter(adapter, base, tmp_path / "merged")
    assert verification.passed
    assert {check.name: check.passed for check in verification.checks}["logits"] is True
    with torch.no_grad():
        expected = load_with_peft(base, adapter)(IDS).logits
        found = load_with_peft(tmp_path / "merged", None)(IDS).logits
        plain = load_with_peft(base, None)(IDS).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)
    assert not torch.allclose(found, plain, atol=0.1)
    assert not (tmp_path / "merged" / "adapter_config.json").exists()


def test_merged_model_keeps_the_dtype_of_the_base_and_the_template_of_the_adapter(
    tmp_path: Path,
) -> None:
    base = build_tiny_model(tmp_path / "base", dtype=torch.bfloat16)
    adapter = write_adapter(base, tmp_path / "adapter")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, adapter)
    (adapter / "chat_template.jinja").write_text("{{ 'another' }}")
    merge_adapter(
        adapter,
        base,
        tmp_path / "merged",
        lambda path: (path / "README.md").touch(),
    )
    weights = load_file(tmp_path / "merged" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert (tmp_path / "merged" / "chat_template.jinja").read_text() == "{{ 'another' }}"
    assert json.loads((tmp_path / "merged" / "manifest.json").read_text())["files"]["README.md"]


def test_adapter_of_another_shape_is_refused(base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(base, tmp_path / "adapter")
    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if "down_proj.lora_A" in name)
    save_file(
        {**weights, name: weights[name][:, :-1].contiguous()}, adapter / "adapter_model.safetensors"
    )
    with pytest.raises(
        ConsolidationError, match="^adapter 'adapter' cannot be merged into 'base': "
    ):
        merge_adapter(adapter, base, tmp_path / "merged")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter"]


def test_existing_directory_is_not_changed(base: Path, tmp_path: Path) -> None:
    (tmp_path / "merged").mkdir()
    with pytest.raises(ConsolidationError, match="merged' already exists; it was not changed$"):
        merge_adapter(tmp_path, base, tmp_path / "merged")


def test_model_with_other_logits_is_rejected(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = write_adapter(base, tmp_path / "adapter")
    real = torch.nn.Module.state_dict

    def change(module: torch.nn.Module, *arguments: Any, **settings: Any) -> dict[str, Any]:
        return {name: one * 1.1 for name, one in real(module, *arguments, **settings).items()}

    monkeypatch.setattr(torch.nn.Module, "state_dict", change)
    with pytest.raises(RejectedError, match="^the merged model is not correct: ") as caught:
        merge_adapter(adapter, base, tmp_path / "merged")
    assert "logits differ from those of the base model with the adapter by" in str(caught.value)
    assert str(caught.value).endswith("moved to 'merged.rejected', with verification.json")
    assert not (tmp_path / "merged").exists()
    assert (tmp_path / "merged.rejected" / "verification.json").is_file()
    with pytest.raises(RejectedError, match="^the merged model is not correct: ") as caught:
        merge_adapter(adapter, base, tmp_path / "other", keeps_rejected=False)
    assert "moved" not in str(caught.value)
    assert not (tmp_path / "other.rejected").exists()


def test_base_without_a_dtype_in_its_settings_keeps_that_of_its_weights(tmp_path: Path) -> None:
    base = build_tiny_model(tmp_path / "base", dtype=torch.bfloat16)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if "dtype" not in key})
    )
    merge_adapter(write_adapter(base, tmp_path / "adapter"), base, tmp_path / "merged")
    weights = load_file(tmp_path / "merged" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}


def test_settings_of_generation_and_tokenizer_are_taken_separately(
    base: Path, tmp_path: Path
) -> None:
    adapter = write_adapter(base, tmp_path / "adapter")
    (adapter / "generation_config.json").write_text('{"temperature": 0.25}')
    (adapter / "chat_template.jinja").write_text("not of a tokenizer")
    merge_adapter(adapter, base, tmp_path / "one")
    assert "0.25" in (tmp_path / "one" / "generation_config.json").read_text()
    tokenizer = (tmp_path / "one" / "tokenizer.json").read_bytes()
    assert tokenizer == (base / "tokenizer.json").read_bytes()
    (adapter / "generation_config.json").unlink()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, adapter)
    merge_adapter(adapter, base, tmp_path / "two")
    assert (tmp_path / "two" / "generation_config.json").is_file()
    assert (tmp_path / "two" / "chat_template.jinja").read_text() == "not of a tokenizer"


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the command line from limiting the process of the test."""
    for name in ("_limit_memory", "offer_for_killing", "lower_process_priority"):
        monkeypatch.setattr(merge, name, lambda *_: None)


@pytest.mark.usefixtures("unlimited")
@pytest.mark.parametrize(
    ("fault", "status", "told"),
    [
        (
            OSError(errno.ENOSPC, "No space left", "/x/y"),
            4,
            "No space left: 'y'",
        ),
        (MemoryError(), 3, "MemoryError"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 3, "Default"),
        (ConsolidationError("{parent}/adapter does not fit"), 1, "adapter does not fit"),
    ],
)
def test_failure_has_a_status_and_names_no_folder(
    fault: Exception,
    status: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if isinstance(fault, ConsolidationError):
        fault = ConsolidationError(str(fault).format(parent=tmp_path))

    def fail(*_: Any, **__: Any) -> None:
        raise fault

    monkeypatch.setattr(merge, "merge_adapter", fail)
    paths = [str(tmp_path / name) for name in ("adapter", "base", "out")]
    assert merge.main(paths) == status
    assert capsys.readouterr().err.startswith(f"failed: {told}")


def test_process_limits_its_memory(base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(base, tmp_path / "adapter")
    code = (
        "import resource, sys; from pathlib import Path; from training.export import merge;"
        "merge._limit_memory(Path(sys.argv[1]), Path(sys.argv[2]));"
        "print(resource.getrlimit(resource.RLIMIT_AS)[0])"
    )
    command = [sys.executable, "-c", code, str(adapter), str(base)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 2**32 < int(ran.stdout) < 2**36
