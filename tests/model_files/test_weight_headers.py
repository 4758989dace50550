import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from model_files.weight_headers import TensorHeader, read_weight_headers
from tests.tiny_model import build_tiny_model


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def model(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "model"))


def shard(model: Path) -> None:
    """Split the weights of a model into two files with an index."""
    from safetensors.torch import load_file

    tensors = sorted(load_file(model / "model.safetensors").items())
    (model / "model.safetensors").unlink()
    parts = {"a.safetensors": dict(tensors[:3]), "b.safetensors": dict(tensors[3:])}
    for name, part in parts.items():
        save_file(part, model / name)
    weight_map = {key: name for name, part in parts.items() for key in part}
    index = {"weight_map": weight_map}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def test_headers_have_dtypes_and_shapes_of_one_or_several_files(model: Path) -> None:
    whole = read_weight_headers(model)
    assert whole["model.layers.0.mlp.up_proj.weight"] == TensorHeader("F32", (64, 32))
    assert whole["model.layers.0.mlp.up_proj.weight"].size_bytes == 64 * 32 * 4
    shard(model)
    assert read_weight_headers(model) == whole


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool])
def test_size_of_each_dtype_is_computed(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"x": torch.zeros(3, 5).to(dtype)}, tmp_path / "model.safetensors")
    assert read_weight_headers(tmp_path)["x"].size_bytes == 15 * dtype.itemsize


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.5, 0.99])
def test_truncated_file_is_named(model: Path, share: float) -> None:
    path = model / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match="^model.safetensors .*; copy or download it again$"):
        read_weight_headers(model)


@pytest.mark.parametrize(
    "header", [b"[]", b"{", b'{"x": 1}', b'{"x": {"dtype": "F32", "shape": [2]}}']
)
def test_invalid_header_is_named(model: Path, header: bytes) -> None:
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ValueError, match="^model.safetensors is no safetensors file"):
        read_weight_headers(model)


def test_index_that_does_not_match_files_is_rejected(model: Path) -> None:
    shard(model)
    path = model / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps({"weight_map": {**index["weight_map"], "more": "a.safetensors"}}))
    with pytest.raises(
        ValueError, match="^model.safetensors.index.json names tensors that no file has: 'more'$"
    ):
        read_weight_headers(model)
    (model / "b.safetensors").unlink()
    with pytest.raises(
        ValueError, match="^model.safetensors.index.json names 'b.safetensors', which is not there"
    ):
        read_weight_headers(model)
    path.write_text("{}")
    with pytest.raises(ValueError, match="^model.safetensors.index.json has no 'weight_map'"):
        read_weight_headers(model)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pytorch_model.bin", "has no safetensors weights, only 'pytorch_model.bin'.*save_pret"),
        ("model-q4.gguf", "has no safetensors weights, only 'model-q4.gguf'.*Convert it"),
        ("adapter_config.json", "is an adapter .* merge it into its model"),
        ("other.safetensors", "has only 'other.safetensors'; expected model.safetensors"),
        (None, "has no weights at all; expected model.safetensors"),
    ],
)
def test_other_formats_are_rejected_with_advice(
    model: Path, name: str | None, message: str
) -> None:
    (model / "model.safetensors").unlink()
    if name is not None:
        (model / name).write_bytes(b"x")
    with pytest.raises(ValueError, match=f"^'model' {message}"):
        read_weight_headers(model)
