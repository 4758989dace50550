import hashlib
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from training.export.safetensors_file import SafetensorsFile, TensorEntry


def make_entries(tensors: dict[str, torch.Tensor]) -> list[TensorEntry]:
    return [TensorEntry(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]


def test_written_file_is_read_by_safetensors(tmp_path: Path) -> None:
    tensors = {
        "counter": torch.tensor(7),
        "weight": torch.randn(5, 3),
        "half": torch.randn(2, 2, 2).to(torch.float16),
        "brain": torch.randn(9).to(torch.bfloat16),
        "empty": torch.empty(0, 4, dtype=torch.bfloat16),
        "mask": torch.tensor([True, False, True]),
    }
    path = tmp_path / "model.safetensors"
    with SafetensorsFile(path, make_entries(tensors)) as file:
        for tensor in tensors.values():
            for start in range(0, tensor.numel(), 4):  # in pieces that need not end with rows
                file.append(tensor.flatten()[start : start + 4])
        hashes = file.finish()
    found = load_file(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    with safe_open(path, framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    content = path.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    assert hashes == {"size_bytes": len(content), "sha256": sha256}


def test_chunk_may_be_overwritten_after_next_chunk(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    buffers = [torch.empty(1000), torch.empty(1000)]
    with SafetensorsFile(path, [TensorEntry("w", torch.float32, torch.Size([50_000]))]) as file:
        for number in range(50):
            buffer = buffers[number % 2]
            buffer.fill_(number)
            file.append(buffer)
        file.finish()
    expected = torch.arange(50).repeat_interleave(1000).float()
    assert torch.equal(load_file(path)["w"], expected)


def test_failed_write_is_raised(tmp_path: Path) -> None:
    with (
        SafetensorsFile(
            Path("/dev/full"), [TensorEntry("w", torch.float32, torch.Size([1 << 20]))]
        ) as file,
        pytest.raises(OSError, match=r"^\[Errno 28\] No space left"),
    ):
        file.append(torch.zeros(1 << 20))
