import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from model_files.weight_headers import INDEX_NAME, read_weight_headers
from storage.manifest import verify_directory
from system.library_errors import LibraryError
from tests.tiny_model import build_tiny_model
from training.export.weight_dtype import convert_weights


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)],
)
def test_weights_equal_those_of_torch(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    directory = build_tiny_model(tmp_path / "tiny")
    before = load_file(directory / "model.safetensors")
    convert_weights(directory, name)
    verify_directory(directory)
    after = load_file(directory / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(after[key], before[key].to(dtype)) for key in before)
    assert json.loads((directory / "config.json").read_text())["dtype"] == str(dtype)[6:]
    assert not list(directory.glob(".*"))
    assert AutoModelForCausalLM.from_pretrained(directory, dtype="auto").dtype == dtype


def test_files_of_index_are_converted_one_by_one(tmp_path: Path) -> None:
    directory = build_tiny_model(tmp_path / "tiny")
    model = AutoModelForCausalLM.from_pretrained(directory)
    (directory / "model.safetensors").unlink()
    model.save_pretrained(directory, max_shard_size="20KB")
    old = json.loads((directory / INDEX_NAME).read_text())
    (directory / "manifest.json").write_text("{}")
    convert_weights(directory, "bf16")
    verify_directory(directory)
    headers = read_weight_headers(directory)
    assert {header.dtype for header in headers.values()} == {"BF16"}
    index = json.loads((directory / INDEX_NAME).read_text())
    assert index["weight_map"] == old["weight_map"]
    assert index["metadata"]["total_size"] == sum(one.size_bytes for one in headers.values())
    assert len(set(index["weight_map"].values())) > 1


def test_other_tensors_and_settings_are_kept(tmp_path: Path) -> None:
    tensors = {
        "odd": torch.tensor([0.5, float("inf"), float("nan")]),
        "ids": torch.tensor([1, 2, 1 << 40]),
        "mask": torch.tensor([True]),
        "none": torch.zeros(0, 4),
        "scalar": torch.tensor(2.0),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    settings = {"torch_dtype": "float32", "text_config": {"dtype": "float32", "layers": 2}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    convert_weights(tmp_path, "fp16")
    after = load_file(tmp_path / "model.safetensors")
    for name in ("odd", "none", "scalar"):
        assert torch.equal(
            after[name].nan_to_num(9), tensors[name].to(torch.float16).nan_to_num(9)
        ), name
    assert torch.equal(after["ids"], tensors["ids"])
    assert torch.equal(after["mask"], tensors["mask"])
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "torch_dtype": "float16",
        "text_config": {"dtype": "float16", "layers": 2},
    }


def test_value_that_dtype_cannot_represent_is_named(tmp_path: Path) -> None:
    save_file({"big": torch.tensor([1.0, -1e5])}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"'big' has the value 100000, .*65504.*bf16 or fp32"):
        convert_weights(tmp_path, "fp16")


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no safetensors files"):
        convert_weights(tmp_path, "fp16")
    save_file({"low": torch.zeros(2).to(torch.float8_e4m3fn)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="'low' has the dtype torch.float8_e4m3fn: it is quantis"):
        convert_weights(tmp_path, "fp16")
    (tmp_path / "config.json").write_text('{"quantization_config": {"bits": 4}}')
    with pytest.raises(ValueError, match="are quantised"):
        convert_weights(tmp_path, "fp16")


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x10" + b"\0" * 30)
    message = r"^model\.safetensors cannot be opened \(SafetensorError: .*; export the model again"
    with pytest.raises(LibraryError, match=message):
        convert_weights(tmp_path, "fp16")
