from pathlib import Path

import pytest

from model_files.gguf import llama_cpp_tools
from model_files.gguf.llama_cpp_tools import find_tools
from tests.model_files.gguf.stand_in import build_stand_in


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp_tools, "find_spec", lambda name: object())
    monkeypatch.setenv("PATH", "/nowhere")


def test_tools_are_found_in_folder(tmp_path: Path) -> None:
    folder = build_stand_in(tmp_path / "llama.cpp")
    tools = find_tools(folder, "q4_k_m")
    assert tools.converter == folder / "convert_hf_to_gguf.py"
    assert tools.quantiser == folder / "build" / "bin" / "llama-quantize"


def test_tools_are_found_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build_stand_in(tmp_path / "llama.cpp", with_quantiser=False)
    (folder / "convert_hf_to_gguf.py").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    assert find_tools(None, None) == (folder / "convert_hf_to_gguf.py", None)


def test_missing_tool_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"convert_hf_to_gguf.py is not on PATH: clone .*--llama-"):
        find_tools(None, None)
    with pytest.raises(ValueError, match="'/nowhere' is not a folder"):
        find_tools(Path("/nowhere"), None)
    folder = build_stand_in(tmp_path / "llama.cpp", with_quantiser=False)
    assert find_tools(folder, "q8_0").quantiser is None
    with pytest.raises(ValueError, match=r"q4_k_m needs llama.cpp's program llama-quantize.*q8_0"):
        find_tools(folder, "q4_k_m")


def test_unknown_quantization_is_refused() -> None:
    with pytest.raises(ValueError, match="'q9': expected one of f32, f16, bf16, q8_0, q6_k"):
        find_tools(None, "q9")


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        llama_cpp_tools, "find_spec", lambda name: None if name == "gguf" else object()
    )
    with pytest.raises(ValueError, match=r"package gguf, not .* pip install 'tuneserve\[gguf\]'"):
        find_tools(None, None)
