import hashlib
import io
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.errors import ModelInUseError, ModelNotFoundError
from serving.store.export import ArchiveFormat, push_to_hub, stream_archive
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from storage.durable import DamagedDirectoryError
from tests.apps.hub.fake_hub import FakeHub, serve_fake_hub
from tests.damage import damage


@pytest.fixture
def model(store: ModelStore, tiny_model: Path) -> StoredModel:
    return store.add(tiny_model, "base")


def read_folder(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_tar_archive_contains_each_file(model: StoredModel, tmp_path: Path) -> None:
    content = b"".join(stream_archive(model, "tar"))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(tmp_path, filter="data")
    assert read_folder(tmp_path / "base") == read_folder(model.path)


def test_zip_archive_contains_each_file(model: StoredModel, tmp_path: Path) -> None:
    content = b"".join(stream_archive(model, "zip"))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        archive.extractall(tmp_path)
    assert read_folder(tmp_path / "base") == read_folder(model.path)


def test_model_is_not_deleted_during_export(store: ModelStore, model: StoredModel) -> None:
    pieces = stream_archive(model, "tar")
    next(iter(pieces))
    with pytest.raises(ModelInUseError):
        store.delete("base")
    list(pieces)
    store.delete("base")
    with pytest.raises(ModelNotFoundError):
        stream_archive(model, "tar")


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("fault", ["gone", "cut"])
def test_model_with_missing_or_truncated_files_is_not_exported(
    model: StoredModel, store: ModelStore, kind: ArchiveFormat, fault: str
) -> None:
    damage(model.path / "model.safetensors", fault)
    found = "is in the manifest but gone" if fault == "gone" else "differs from its manifest: found"
    expected = rf"^base: 'model\.safetensors' {found}"
    with pytest.raises(
        DamagedDirectoryError,
        match=expected,
    ):
        stream_archive(model, kind)
    store.delete("base")  # the model is not locked


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer_config.json"])
def test_archive_of_modified_model_is_incomplete(
    model: StoredModel, store: ModelStore, kind: ArchiveFormat, name: str, tmp_path: Path
) -> None:
    damage(model.path / name, "flipped")
    archive = tmp_path / f"base.{kind}"
    expected = f"^base: '{name}' differs from its manifest: "
    with archive.open("wb") as file, pytest.raises(DamagedDirectoryError, match=expected):
        file.writelines(stream_archive(model, kind))
    with pytest.raises((shutil.ReadError, tarfile.ReadError)):
        shutil.unpack_archive(archive, tmp_path / "unpacked")
    store.delete("base")


def test_hidden_files_are_not_exported(model: StoredModel, tmp_path: Path) -> None:
    (model.path / ".nfs0001").write_text("left by a network file system")
    content = b"".join(stream_archive(model, "tar"))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert not [name for name in archive.getnames() if ".nfs" in name]


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HF_HUB_DISABLE_XET", True), ("HF_HUB_OFFLINE", False)):
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)


@pytest.fixture
def hub(online: None) -> Iterator[FakeHub]:
    with serve_fake_hub() as server:
        yield server


def test_model_is_pushed_to_hub(
    hub: FakeHub, store: ModelStore, tiny_model: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(tiny_model, tmp_path / "source"))
    (source / "README.md").write_text("---\ntags: [tuneserve]\n---\n# A model\n")
    model = store.add(source, "tuned")
    address = push_to_hub(model.path, "me/tuned", token="hf_test", endpoint=hub.url)
    assert address == f"{hub.url}/me/tuned/commit/{'1' * 40}"
    assert hub.tokens == {"Bearer hf_test"}
    (created,) = hub.created
    assert (created["organization"], created["name"]) == ("me", "tuned")
    assert created["visibility"] == "private"
    assert hub.files == read_folder(model.path)
    assert set(hub.cards) == {(source / "README.md").read_text()}
    for name, blob in hub.blobs.items():
        assert hashlib.sha256(blob).hexdigest() == name


def test_unreachable_hub_error_has_url(online: None, model: StoredModel) -> None:
    with pytest.raises(ConnectionError, match="^the hub at http://127.0.0.1:9 cannot be reached: "):
        push_to_hub(model.path, "me/tuned", token="hf_test", endpoint="http://127.0.0.1:9")
