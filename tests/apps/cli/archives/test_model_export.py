import json
import os
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from apps.http_api.dependencies import Services
from model_files.weight_headers import read_file_header, read_weight_headers
from serving.store.adapter_validation import check_adapter_directory
from serving.store.model_store import ModelStore
from storage.durable import seal_directory
from storage.layout import StorageLayout
from storage.manifest import verify_directory
from system.free_resources import measure_size
from tests.apps.cli.conftest import Call
from tests.model_files.gguf.stand_in import build_stand_in, install_sentencepiece
from tests.peft_adapters import write_adapter
from tests.tiny_encoder import build_tiny_encoder

DTYPE = ("--format", "safetensors", "--dtype")
GGUF = ("--format", "gguf")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the command, with llama.cpp elsewhere."""
    monkeypatch.setenv("PATH", "/nowhere")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for llama.cpp, named by the environment variable."""
    pytest.importorskip("gguf")
    monkeypatch.syspath_prepend(install_sentencepiece(tmp_path / "packages"))
    found = build_stand_in(tmp_path / "llama.cpp", with_quantiser=False)
    monkeypatch.setenv("TUNESERVE_LLAMA_CPP", str(found))
    return found


@pytest.mark.parametrize("ending", ["tar", "zip"])
def test_weights_are_converted_on_client(call: Call, folder: Path, ending: str) -> None:
    name = f"small.{ending}"
    assert call("models", "export", "latest", name, *DTYPE, "bf16") == (0, f"wrote {name}")
    assert [path.name for path in folder.iterdir()] == [name]
    if ending == "tar":
        with tarfile.open(name) as archive:
            archive.extractall(folder, filter="data")
    else:
        with zipfile.ZipFile(name) as packed:
            packed.extractall(folder)
    verify_directory(folder / "tiny")
    assert {header.dtype for header in read_weight_headers(folder / "tiny").values()} == {"BF16"}
    assert call("models", "add", name, "small") == (0, "added small")


def test_format_without_dtype_keeps_files(call: Call, layout: StorageLayout) -> None:
    assert call("models", "export", "tiny", "tiny.tar", "--format", "safetensors")[0] == 0
    with tarfile.open("tiny.tar") as archive:
        sizes = {member.name: member.size for member in archive}
    published = layout.model("tiny")
    assert sizes == {f"tiny/{path.name}": path.stat().st_size for path in published.iterdir()}


def test_gguf_is_written_and_verified(call: Call, llama_cpp: Path, folder: Path) -> None:
    status, output = call("models", "export", "latest", "tiny.gguf", *GGUF, "--json")
    assert status == 0, output
    answer = json.loads(output)
    assert answer["model"] == "tiny"
    assert answer["quantization"] == "f32"
    assert answer["num_tensors"] == answer["num_compared"] > 0
    assert [path.name for path in folder.iterdir()] == ["tiny.gguf"]


def test_failed_verification_leaves_no_file(call: Call, tmp_path: Path, folder: Path) -> None:
    pytest.importorskip("gguf")
    broken = build_stand_in(tmp_path / "broken", "tensors['output_norm.weight'][0] = float('inf')")
    # `find_tools` needs the package, which only real converters import.
    arguments = ("models", "export", "tiny", "tiny.gguf", *GGUF, "--llama-cpp", str(broken))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(install_sentencepiece(tmp_path / "packages"))
        status, output = call(*arguments)
    assert (status, "'output_norm.weight' has values that are not finite" in output) == (1, True)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tiny.gguf",), "expected a name that ends in .tar or .zip; add --format gguf"),
        (("tiny.tar", *GGUF), "expected a name that ends in .gguf"),
        (("tiny.rar", *DTYPE, "bf16"), "expected a name that ends in .tar or .zip"),
        (("tiny.tar", "--quantize", "q8_0"), "--quantize needs --format gguf"),
        (("tiny.tar", *DTYPE[:2], "--quantize", "q8_0"), "--quantize needs --format gguf"),
        (("tiny.tar", "--dtype", "bf16"), "--dtype needs --format safetensors"),
        (("tiny.gguf", *GGUF, "--dtype", "bf16"), "--dtype needs --format safetensors"),
        (("there.gguf", *GGUF), "already exists"),
        (("nowhere/tiny.gguf", *GGUF), "there is no folder 'nowhere'"),
        (("tiny.gguf", *GGUF, "--quantize", "q9"), "expected one of f32, f16"),
        (("tiny.gguf", *GGUF, "--quantize", "Q4_K_M"), "needs llama.cpp's program llama-quantize"),
        (("tiny.gguf", *GGUF, "--llama-cpp", "there"), "'there' is not a folder"),
    ],
)
def test_impossible_export_is_refused_before_any_request(
    call: Call,
    llama_cpp: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setenv("TUNESERVE_URL", "http://127.0.0.1:9")  # a request would fail
    (folder / "there.gguf").touch()
    status, output = call("models", "export", "tiny", *arguments)
    assert (status, message in output) == (1, True), output
    assert [path.name for path in folder.iterdir()] == ["there.gguf"]


def test_missing_converter_is_named(call: Call, llama_cpp: Path) -> None:
    (llama_cpp / "convert_hf_to_gguf.py").unlink()
    status, output = call("models", "export", "tiny", "tiny.gguf", *GGUF)
    assert (status, "convert_hf_to_gguf.py is not in" in output) == (1, True), output


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"architectures": ["NewForCausalLM"]}, "does not know the architecture 'NewForCausalLM'"),
        ({"architectures": None}, "names no 'architectures'"),
        ({"quantization_config": {"bits": 4}}, "are quantised"),
    ],
)
def test_model_that_gguf_cannot_have_is_refused(
    call: Call,
    llama_cpp: Path,
    layout: StorageLayout,
    folder: Path,
    settings: dict[str, object],
    message: str,
) -> None:
    change_config(layout.model("tiny"), settings)
    status, output = call("models", "export", "tiny", "tiny.gguf", *GGUF)
    assert (status, message in output) == (1, True), output
    assert list(folder.iterdir()) == []


def test_classifier_is_refused_for_gguf(
    call: Call, llama_cpp: Path, services: Services, tmp_path: Path
) -> None:
    services.models.add(build_tiny_encoder(tmp_path / "mood", num_labels=2), "mood")
    status, output = call("models", "export", "mood", "mood.gguf", *GGUF)
    assert (status, "the task of 'mood' is sequence_classification" in output) == (1, True), output


@pytest.mark.parametrize(
    "arguments",
    [
        ("tiny.zip",),
        ("tiny.tar", *DTYPE, "bf16"),
        ("tiny.zip", *DTYPE, "fp32"),
        ("tiny.gguf", *GGUF),
    ],
)
def test_export_without_room_on_disk_is_refused(
    call: Call,
    llama_cpp: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
) -> None:
    needed_bytes = read_needed(call, monkeypatch, *arguments)
    assert list(folder.iterdir()) == []
    peaks = watch_size(folder, monkeypatch)
    monkeypatch.setattr(
        "apps.cli.archives.model_export.measure_free_disk", lambda folder: needed_bytes
    )
    assert call("models", "export", "latest", *arguments)[0] == 0
    assert max(peaks) <= needed_bytes < 1.2 * max(peaks) + 20_000


def test_room_for_quantiser_has_both_of_its_files(
    call: Call, layout: StorageLayout, llama_cpp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (llama_cpp / "llama-quantize").touch()
    needed_bytes = read_needed(call, monkeypatch, "tiny.gguf", *GGUF, "--quantize", "Q4_K_M")
    weights = sum(
        header.size_bytes for header in read_weight_headers(layout.model("tiny")).values()
    )
    expected = 3 * measure_size(layout.model("tiny")) - weights + weights * 4.9 / 32
    assert needed_bytes == pytest.approx(expected, rel=0.05)


def test_adapter_without_room_is_refused(
    call: Call, layout: StorageLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = write_adapter(layout.model("tiny"), tmp_path / "adapter", r=32)
    stored = ModelStore(layout).add(adapter, "a", base_id="tiny")
    size_bytes = measure_size(stored.path)
    monkeypatch.setattr(
        "apps.cli.archives.model_export._HEAD_BYTES", 10_000
    )  # before the weights end
    needed_bytes = read_needed(call, monkeypatch, "a.tar", model="a")
    assert size_bytes < needed_bytes < size_bytes + 20_000


def read_needed(
    call: Call, monkeypatch: pytest.MonkeyPatch, *arguments: str, model: str = "latest"
) -> int:
    """Export on a full disk, and return the bytes that the refusal names."""
    with monkeypatch.context() as patch:
        patch.setattr("apps.cli.archives.model_export.measure_free_disk", lambda folder: 1_000)
        status, output = call("models", "export", model, *arguments)
    found = re.search(
        rf"^error: the disk of '{arguments[0]}' has no room for the export: .* needs up to "
        r"([\d,]+) bytes \(.*\), 1,000 bytes \(1.0 kB\) are free; make room there",
        output,
    )
    assert status == 1
    assert found is not None, output
    return int(found[1].replace(",", ""))


def watch_size(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the size of a folder before each file is renamed or removed."""
    sizes: list[int] = []
    for owner, name in ((Path, "rename"), (Path, "unlink"), (os, "replace")):
        monkeypatch.setattr(owner, name, note_size(getattr(owner, name), folder, sizes))
    return sizes


def note_size(
    function: Callable[..., object], folder: Path, sizes: list[int]
) -> Callable[..., object]:
    def wrapped(*arguments: object, **options: object) -> object:
        sizes.append(measure_size(folder))
        return function(*arguments, **options)

    return wrapped


def test_failure_of_library_is_message(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **settings: object) -> None:
        raise RuntimeError("unknown dtype")

    monkeypatch.setattr("training.export.weight_dtype.safe_open", refuse)
    status, output = call("models", "export", "tiny", "tiny.tar", *DTYPE, "bf16")
    message = "error: model.safetensors cannot be opened (RuntimeError: unknown dtype); export"
    assert (status, message in output) == (1, True), output
    assert list(folder.iterdir()) == []


def test_fault_of_own_code_is_no_message(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("bug")

    monkeypatch.setattr("training.export.weight_dtype._plan", fail)
    with pytest.raises(AssertionError, match=r"^KeyError\('bug'\)"):
        call("models", "export", "tiny", "tiny.tar", *DTYPE, "bf16")
    assert list(folder.iterdir()) == []


def test_adapter_is_exported_in_another_dtype(
    call: Call, layout: StorageLayout, tmp_path: Path
) -> None:
    adapter = write_adapter(layout.model("tiny"), tmp_path / "adapter")
    ModelStore(layout).add(adapter, "a", base_id="tiny")
    archive = tmp_path / "a.tar"
    options = ("--format", "safetensors", "--dtype", "bf16")
    status, output = call("models", "export", "a", str(archive), *options)
    assert (status, f"wrote {archive}" in output) == (0, True), output
    with tarfile.open(archive) as files:
        files.extractall(tmp_path / "out", filter="data")
    verify_directory(tmp_path / "out" / "a")
    headers = read_file_header(tmp_path / "out" / "a" / "adapter_model.safetensors")
    assert {header.dtype for header in headers.values()} == {"BF16"}
    check_adapter_directory(tmp_path / "out" / "a", layout.model("tiny"))


def test_adapter_is_refused_for_gguf(call: Call, llama_cpp: Path, layout: StorageLayout) -> None:
    (layout.model("tiny") / "adapter_config.json").write_text("{}")
    reseal(layout.model("tiny"))
    status, output = call("models", "export", "tiny", "tiny.gguf", *GGUF)
    assert (status, "'tiny' is an adapter" in output) == (1, True), output


def change_config(directory: Path, settings: dict[str, object]) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    reseal(directory)


def reseal(directory: Path) -> None:
    seal_directory(directory)
