import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from model_files.gguf.conversion import check_architecture, convert_to_gguf
from model_files.gguf.llama_cpp_tools import GgufConversionError, LlamaCppTools
from tests.model_files.gguf.stand_in import build_stand_in
from tests.tiny_model import build_tiny_model

gguf = pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def tools(tmp_path: Path) -> LlamaCppTools:
    folder = build_stand_in(tmp_path / "llama.cpp")
    return LlamaCppTools(
        folder / "convert_hf_to_gguf.py", folder / "build" / "bin" / "llama-quantize"
    )


@pytest.fixture
def directory(tiny: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny, tmp_path / "tiny")


def read(path: Path, key: str) -> Any:
    return gguf.GGUFReader(path).get_field(key).contents()


def test_converter_gets_type_of_weights_and_name_of_tokenizer(
    tools: LlamaCppTools, directory: Path, tmp_path: Path
) -> None:
    done = convert_to_gguf(tools, directory, tmp_path / "tiny.gguf", None)
    assert done == (tmp_path / "tiny.gguf", "f32")
    assert read(done.path, "test.outtype") == "f32"
    assert read(done.path, "tokenizer.ggml.pre") == "gpt-2"
    done = convert_to_gguf(tools, directory, tmp_path / "small.gguf", "q8_0")
    assert read(done.path, "test.outtype") == "q8_0"


def test_other_types_are_made_by_quantiser_from_unquantised_file(
    tools: LlamaCppTools, directory: Path, tmp_path: Path
) -> None:
    done = convert_to_gguf(tools, directory, tmp_path / "tiny.gguf", "q4_k_m")
    assert done.quantization == "q4_k_m"
    assert read(done.path, "test.outtype") == "f32"
    assert (tmp_path / "tiny.gguf.type").read_text() == "Q4_K_M\n"
    assert not (tmp_path / "f32.gguf").exists()


def test_unknown_tokenizer_is_explained(
    tools: LlamaCppTools, directory: Path, tmp_path: Path
) -> None:
    path = directory / "tokenizer.json"
    settings = json.loads(path.read_text())
    settings["pre_tokenizer"]["add_prefix_space"] = True
    path.write_text(json.dumps(settings))
    with pytest.raises(GgufConversionError, match="does not know this model's tokenizer"):
        convert_to_gguf(tools, directory, tmp_path / "tiny.gguf", None)


def test_code_of_directory_is_removed_before_conversion(
    tools: LlamaCppTools, directory: Path, tmp_path: Path
) -> None:
    # The converter loads the tokenizer with trust_remote_code.
    path = directory / "tokenizer_config.json"
    code = {"AutoTokenizer": ["evil.Evil", None]}
    path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": code}))
    (directory / "evil.py").write_text("raise SystemExit('evil')")
    convert_to_gguf(tools, directory, tmp_path / "tiny.gguf", None)
    assert "auto_map" not in json.loads(path.read_text())
    assert not (directory / "evil.py").exists()


def test_failed_converter_is_reported_with_its_last_lines(directory: Path, tmp_path: Path) -> None:
    folder = build_stand_in(tmp_path / "broken", "raise KeyError('rope_theta')")
    tools = LlamaCppTools(folder / "convert_hf_to_gguf.py", None)
    with pytest.raises(
        GgufConversionError, match=r"(?s)convert_hf_to_gguf.py failed .* 1:\n.*'rope_theta'"
    ):
        convert_to_gguf(tools, directory, tmp_path / "tiny.gguf", None)


def test_architecture_must_be_listed(tools: LlamaCppTools) -> None:
    check_architecture(tools, "LlamaForCausalLM")
    with pytest.raises(ValueError, match="does not know the architecture 'NewForCausalLM'"):
        check_architecture(tools, "NewForCausalLM")
