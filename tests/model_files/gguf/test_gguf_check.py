from pathlib import Path

import pytest

from model_files.gguf.conversion import convert_to_gguf
from model_files.gguf.gguf_check import check_gguf
from model_files.gguf.llama_cpp_tools import LlamaCppTools
from model_files.weight_headers import read_weight_headers
from system.library_errors import LibraryError
from tests.model_files.gguf.stand_in import build_stand_in
from tests.tiny_model import build_tiny_model

pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def convert(directory: Path, tmp_path: Path, edit: str) -> Path:
    folder = build_stand_in(tmp_path / "llama.cpp", edit)
    tools = LlamaCppTools(folder / "convert_hf_to_gguf.py", None)
    return convert_to_gguf(tools, directory, tmp_path / "tiny.gguf", None).path


def test_equal_tensors_are_accepted(directory: Path, tmp_path: Path) -> None:
    figures = check_gguf(convert(directory, tmp_path, ""), directory)
    headers = read_weight_headers(directory)
    assert figures.architecture == "llama"
    assert figures.num_tensors == figures.num_compared == len(headers)
    assert figures.num_parameters == sum(header.num_elements for header in headers.values())


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ("del tensors['blk.1.ffn_up.weight']", "no tensor 'blk.1.ffn_up.weight', expected one"),
        (
            "tensors['blk.0.ffn_up.weight'] = tensors['blk.0.ffn_up.weight'].T.copy()",
            r"'blk.0.ffn_up.weight' has the shape \(32, 64\), expected \(64, 32\)",
        ),
        (
            "tensors['token_embd.weight'][300, 3] = float('nan')",
            "'token_embd.weight' has values that are not finite",
        ),
    ],
)
def test_wrong_tensor_is_named(directory: Path, tmp_path: Path, edit: str, message: str) -> None:
    path = convert(directory, tmp_path, edit)
    with pytest.raises(ValueError, match=message):
        check_gguf(path, directory)


def test_truncated_file_is_refused(directory: Path, tmp_path: Path) -> None:
    path = convert(directory, tmp_path, "")
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(LibraryError, match=r"^tiny\.gguf cannot be read back \(ValueError: "):
        check_gguf(path, directory)


def test_type_that_package_cannot_read_is_named(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(data: object, kind: object) -> None:
        raise NotImplementedError(f"no dequantisation of {kind}")

    path = convert(directory, tmp_path, "")
    monkeypatch.setattr("gguf.quants.dequantize", refuse)
    message = r"^tiny\.gguf: '[\w.]+' cannot be dequantised \(NotImplementedError: no .*; install"
    with pytest.raises(LibraryError, match=message):
        check_gguf(path, directory)
