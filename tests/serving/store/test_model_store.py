import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.errors import (
    EngineDeadError,
    InvalidRequestError,
    ModelInUseError,
    ModelNotFoundError,
    TooManyAliasesError,
)
from serving.store import model_store
from serving.store.aliases import AliasBook
from serving.store.clean_up import clean_up_models
from serving.store.lineage import Lineage
from serving.store.model_reader import ModelReader
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from storage import durable
from storage.layout import StorageLayout
from storage.manifest import verify_directory
from tests.damage import damage
from tests.peft_adapters import write_adapter
from training.base_model import find_revision


def _copy(source: Path, layout: StorageLayout) -> Path:
    return Path(shutil.copytree(source, layout.models / ".building"))


def test_published_model_is_resolved_by_id(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    building = _copy(tiny_model, layout)
    durable.write_json(building / "lineage.json", {"run_id": "run-1", "created_at": 1700000000})
    published = store.publish(building, "m-1")

    assert store.resolve("m-1") == store.get("m-1") == published
    assert published.path == layout.model("m-1")
    assert (published.created_at, published.lineage.run_id) == (1700000000, "run-1")
    assert published.fingerprint.startswith("fp_")
    assert not building.exists()
    verify_directory(published.path)


def test_add_does_not_change_source_folder(
    store: ModelStore, tiny_model: Path, other_model: Path
) -> None:
    before = sorted(path.name for path in tiny_model.iterdir())
    first, second = store.add(tiny_model, "base"), store.add(other_model, "base-2")
    assert sorted(path.name for path in tiny_model.iterdir()) == before
    assert [model.id for model in store.list_models()] == ["base", "base-2"]
    assert first.fingerprint != second.fingerprint
    assert first.lineage == Lineage()


def test_links_in_hub_cache_snapshot_are_followed(
    store: ModelStore, tiny_model: Path, tmp_path: Path
) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0", tmp_path / "models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(tiny_model.iterdir())):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    added = store.add(snapshot, "base")
    assert not any(path.is_symlink() for path in added.path.rglob("*"))
    (snapshot / "other.txt").symlink_to("../../../secret")
    with pytest.raises(ValueError, match="^other.txt is a link that leaves"):
        store.add(snapshot, "base-2")


def test_model_id_is_not_reused(store: ModelStore, tiny_model: Path) -> None:
    store.add(tiny_model, "base")
    with pytest.raises(FileExistsError, match="^'base' is published already; "):
        store.add(tiny_model, "base")


def test_incomplete_model_is_not_listed(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    _copy(tiny_model, layout)
    shutil.copytree(tiny_model, layout.models / "no-manifest")
    assert store.list_models() == []
    with pytest.raises(ModelNotFoundError, match="^no model has the id 'no-manifest'; "):
        store.get("no-manifest")


def test_unknown_model_error_lists_models_and_aliases(store: ModelStore, tiny_model: Path) -> None:
    store.add(tiny_model, "base")
    store.point_alias("latest", "base")
    for name in ("nope", "../aliases.json", ""):
        with pytest.raises(ModelNotFoundError) as caught:
            store.resolve(name)
        assert repr(name) in caught.value.message
        assert "models: base; aliases: latest" in caught.value.message
        again = pickle.loads(pickle.dumps(caught.value))
        assert (again.message, again.param) == (caught.value.message, "model")


def test_alias_keeps_its_history(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    for model_id in ("a", "b"):
        store.add(tiny_model, model_id)
    for model_id in ("a", "b", "b", "a"):
        store.point_alias("latest", model_id)
    assert store.resolve("latest").id == "a"
    assert [move.model_id for move in store.read_aliases()["latest"].history] == ["a", "b", "a"]
    written = json.loads(layout.store.aliases.read_text())
    assert written["latest"]["model"] == "a"
    assert set(written["latest"]["history"][0]) == {"model", "at"}


def test_alias_must_point_to_model_and_not_have_its_id(store: ModelStore, tiny_model: Path) -> None:
    store.add(tiny_model, "a")
    with pytest.raises(ModelNotFoundError, match="^no model has the id 'b'; "):
        store.point_alias("latest", "b")
    with pytest.raises(ValueError, match="^'a' is the id of a model and cannot be an alias too$"):
        store.point_alias("a", "a")
    with pytest.raises(ValueError, match="^'../x' is not a valid id: "):
        store.point_alias("../x", "a")
    store.point_alias("latest", "a")
    with pytest.raises(ValueError, match="^'latest' is the name of an alias; "):
        store.add(tiny_model, "latest")


def test_alias_beyond_limit_is_refused(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    for model_id in ("a", "b"):
        store.add(tiny_model, model_id)
    entry = {"model": "a", "history": [{"model": "a", "at": 1}]}
    durable.write_json(
        layout.store.aliases, {f"alias-{number:04d}": entry for number in range(1_000)}
    )
    store.remove_alias("alias-0000")
    with pytest.raises(
        TooManyAliasesError,
        match="^there is no room for the alias 'one-more': 1,000 aliases are on record",
    ) as caught:
        store.point_alias("one-more", "a")
    assert caught.value.code == "too_many_aliases"
    assert store.point_alias("alias-0000", "b").model_id == "b"
    assert store.point_alias("latest", "a").model_id == "a", (
        "the alias of published fine-tunes was refused"
    )


def test_concurrent_writers_lose_no_alias(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "a")
    names = [f"alias-{number}" for number in range(16)]
    threads = [
        threading.Thread(target=ModelStore(layout).point_alias, args=(name, "a")) for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(store.read_aliases()) == sorted(names)


def _set_key(name: str, key: str, value: object) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        content = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps({**content, key: value}))

    return change


def _write_index(file: str) -> Callable[[Path], None]:
    def write(model: Path) -> None:
        index = {"metadata": {}, "weight_map": {"nope": file}}
        durable.write_json(model / "model.safetensors.index.json", index)

    return write


def _cut_weights(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def _link_outside(model: Path) -> None:
    (model / "extra.txt").symlink_to("../../../etc/hostname")


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (
            lambda model: (model / "config.json").unlink(),
            "'.*' is neither the directory of a model nor of an adapter: it has no config.json",
        ),
        (
            lambda model: (model / "model.safetensors").unlink(),
            "'.*' has no weights: expected model.safetensors",
        ),
        (
            lambda model: (model / "tokenizer.json").unlink(),
            "'.*' has no tokenizer: expected tokenizer.json",
        ),
        (lambda model: (model / "pytorch_model.bin").touch(), "pytorch_model.bin may hold pickled"),
        (lambda model: (model / "optimizer.PT").touch(), "optimizer.PT may hold pickled"),
        (
            lambda model: (model / "adapter_config.json").touch(),
            "'.*' has adapter_config.json and config.json, so it is an adapter of PEFT in",
        ),
        (_set_key("config.json", "auto_map", {}), "config.json asks for code"),
        (_set_key("tokenizer_config.json", "auto_map", {}), "tokenizer_config.json asks for code"),
        (_link_outside, "extra.txt is a link that leaves"),
        (lambda model: (model / "config.json").write_text("{"), "config.json is not valid JSON"),
        (
            lambda model: (model / "lineage.json").write_text("[]"),
            "lineage.json is not one of ours: it contains a JSON list",
        ),
        (
            lambda model: (model / "lineage.json").write_text('{"data": {"sha256": 5}}'),
            r"lineage.json is not one of ours: data\.sha256",
        ),
        (
            _write_index("model-00001-of-00002.safetensors"),
            "model.safetensors.index.json names 'model-00001-of-00002.safetensors', which is no f",
        ),
        (
            _write_index("../tiny/model.safetensors"),
            "model.safetensors.index.json names '../tiny/model.safetensors', which is no file",
        ),
        (_write_index("model.safetensors"), "model.safetensors lacks 'nope', which"),
        (_cut_weights, "model.safetensors is not a whole safetensors file"),
    ],
)
def test_unsafe_or_incomplete_models_are_refused(
    corrupt: Callable[[Path], None],
    message: str,
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
) -> None:
    building = _copy(tiny_model, layout)
    corrupt(building)
    for enter in (store.publish, store.add):
        with pytest.raises(ValueError, match=f"^{message}"):
            enter(building, "m")
    assert store.list_models() == []
    assert [path.name for path in layout.models.iterdir()] == [".building"]


def test_model_is_deleted_only_when_unused(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    for model_id in ("a", "b"):
        store.add(tiny_model, model_id)
    store.point_alias("latest", "a")
    with pytest.raises(ModelInUseError, match="^model 'a' is what 'latest' points to; "):
        store.delete("a")
    store.point_alias("latest", "b")
    with (
        store.get("a").lock_shared(),
        pytest.raises(ModelInUseError, match="^model 'a' is loaded "),
    ):
        store.delete("a")
    model = store.get("a")
    store.delete("a")
    assert [found.id for found in store.list_models()] == ["b"]
    assert not layout.model("a").exists()
    with pytest.raises(ModelNotFoundError, match="^model 'a' has been deleted$"):
        model.lock_shared()
    with pytest.raises(ModelNotFoundError, match="^no model has the id 'a'; "):
        store.delete("a")


def test_rollback_skips_deleted_model(store: ModelStore, tiny_model: Path) -> None:
    for model_id in ("a", "b", "c"):
        store.add(tiny_model, model_id)
        store.point_alias("latest", model_id)
    store.delete("b")
    assert store.roll_back_alias("latest").model_id == "a"
    assert store.resolve("latest").id == "a"
    store.remove_alias("latest")
    with pytest.raises(ModelNotFoundError, match="^no model or alias is called 'latest'; "):
        store.resolve("latest")


@pytest.mark.parametrize("fault", ["flipped", "cut", "gone"])
def test_verify_names_damaged_file(store: ModelStore, tiny_model: Path, fault: str) -> None:
    model = store.add(tiny_model, "base")
    model.verify()
    damage(model.path / "model.safetensors", fault)
    with pytest.raises(ValueError, match=r"^base: 'model\.safetensors'"):
        model.verify()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "manifest.json").write_text("{"), "'manifest.json' cannot be read"),
        (lambda path: (path / "manifest.json").write_text("[]"), "'manifest.json' cannot be read"),
        (lambda path: (path / "chat_template.txt").touch(), "'chat_template.txt' is not in the"),
    ],
)
def test_verify_detects_changed_manifest_and_added_file(
    store: ModelStore, tiny_model: Path, damage: Callable[[Path], object], message: str
) -> None:
    model = store.add(tiny_model, "base")
    (model.path / ".DS_Store").touch()
    model.verify()
    damage(model.path)
    with pytest.raises(durable.DamagedDirectoryError, match=f"^base: {message}"):
        model.verify()


def test_read_only_source_folder_is_copied(
    store: ModelStore, tiny_model: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(tiny_model, tmp_path / "source"))
    source.chmod(0o555)
    assert store.add(source, "a").path.stat().st_mode & 0o777 == 0o700


def test_id_in_alias_history_is_not_reused(
    store: ModelStore, tiny_model: Path, other_model: Path
) -> None:
    for model_id in ("a", "b"):
        store.add(tiny_model, model_id)
        store.point_alias("latest", model_id)
    store.delete("a")
    with pytest.raises(FileExistsError, match="^'a' was a model that an alias pointed to, "):
        store.add(other_model, "a")


def test_id_truncated_from_alias_history_is_not_reused(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    for model_id in ("a", "b"):
        store.add(tiny_model, model_id)
        store.point_alias("latest", model_id)
    store.delete("a")
    with AliasBook(layout.store.aliases).change() as change:
        for number in range(2_000):
            change.point("latest", f"b-{number % 2}")
    assert "a" not in {move.model_id for move in store.read_aliases()["latest"].history}
    with pytest.raises(FileExistsError, match="^'a' was a model that an alias pointed to, "):
        store.add(tiny_model, "a")


def test_model_that_failed_verification_is_not_published(
    store: ModelStore, tiny_model: Path, tmp_path: Path
) -> None:
    rejected = Path(shutil.copytree(tiny_model, tmp_path / "model.rejected"))
    durable.write_json(rejected / "verification.json", {"passed": False})
    with pytest.raises(ValueError, match=r"^'model\.rejected' failed its verification"):
        store.add(rejected, "base")
    assert store.list_models() == []


def test_manifest_in_source_folder_is_ignored(
    store: ModelStore, tiny_model: Path, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(tiny_model, tmp_path / "source"))
    manifests: list[object] = [{"files": {"../../secret": {}}}, {"files": {}}, ["a", "list"]]
    for manifest in manifests:
        durable.write_json(source / "manifest.json", manifest)
        model_id = f"m-{len(store.list_models())}"
        added = store.add(source, model_id)
        added.verify()
        files = durable.read_json(added.path / "manifest.json")["files"]
        assert set(files) == {path.name for path in tiny_model.iterdir()}


def test_unreadable_lineage_does_not_hide_model(store: ModelStore, tiny_model: Path) -> None:
    added = store.add(tiny_model, "base")
    (added.path / "lineage.json").write_text("{")
    assert [model.lineage for model in store.list_models()] == [Lineage()]
    assert store.resolve("base").id == "base"


def test_latest_is_refused_as_model_id(store: ModelStore, tiny_model: Path) -> None:
    with pytest.raises(ValueError, match="^'latest' is the name of an alias; "):
        store.add(tiny_model, "latest")


def test_new_model_with_deleted_id_is_distinct(
    store: ModelStore, tiny_model: Path, other_model: Path
) -> None:
    old = store.add(tiny_model, "a")
    store.delete("a")
    assert not old.exists()
    new = store.add(other_model, "a")
    assert new.exists()
    assert not old.exists()
    with pytest.raises(ModelNotFoundError, match="^model 'a' has been deleted$"):
        old.lock_shared()
    new.lock_shared().close()


def test_delete_is_refused_by_usage_check(store: ModelStore, tiny_model: Path) -> None:
    store.add(tiny_model, "a")

    def need() -> None:
        raise ModelInUseError("a job needs it")

    with pytest.raises(ModelInUseError, match="^a job needs it$"):
        store.delete("a", need)
    store.get("a").lock_shared().close()
    store.delete("a", lambda: None)


def test_scratch_of_killed_deletion_is_removed_by_next_deletion(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(tiny_model, "a")
    with monkeypatch.context() as patched:
        patched.setattr("serving.store.clean_up.shutil.rmtree", lambda *_, **__: None)
        store.delete("a")
    assert [path.name.startswith(".deleted-") for path in layout.models.iterdir()] == [True]
    store.add(tiny_model, "a")
    store.delete("a")
    assert list(layout.models.iterdir()) == []


def test_model_is_added_without_importing_torch(tmp_path: Path, tiny_model: Path) -> None:
    """The HTTP process imports models, and takes half as much memory without torch."""
    program = """
import sys
from pathlib import Path
from serving.store.model_store import ModelStore
from storage.layout import open_storage
ModelStore(open_storage(Path(sys.argv[1]))).add(Path(sys.argv[2]), "model")
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, tmp_path, tiny_model], check=True)


def _make_unreadable(path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Make the file system fail for everything below a path, as with a faulty disk."""
    real = Path.stat

    def fail(self: Path, **options: bool) -> os.stat_result:
        if self.is_relative_to(path):
            raise OSError(number, os.strerror(number), str(self))
        return real(self, **options)

    monkeypatch.setattr(Path, "stat", fail)


def test_foreign_entries_do_not_hide_models(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "a")
    (layout.models / "stray").write_text("a plain file")
    (layout.models / ".deleted-stray").write_text("a plain file")
    (layout.models / "loop").symlink_to("loop")
    (layout.models / "dangling").symlink_to("nowhere")
    (layout.models / "bad name?").mkdir()
    (layout.models / "b").mkdir()
    (layout.models / "b" / "manifest.json").mkdir()
    lineage = store.add(tiny_model, "c").path / "lineage.json"
    lineage.mkdir()
    assert {model.id for model in store.list_models()} >= {"a", "c"}
    assert store.resolve("c").lineage == Lineage()
    store.point_alias("latest", "a")
    store.add(tiny_model, "d")
    store.delete("d")
    clean_up_models(layout)
    with pytest.raises(FileExistsError):
        store.add(tiny_model, "dangling")


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_unreadable_model_does_not_hide_other_models(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    unreadable = store.add(tiny_model, "spoiled")
    store.add(tiny_model, "a")
    store.point_alias("latest", "a")
    _make_unreadable(layout.model("spoiled"), monkeypatch, number)
    assert [model.id for model in store.list_models()] == ["a"]
    assert store.resolve("latest").id == "a"
    assert store.add(tiny_model, "b").id == "b"
    with pytest.raises(ModelNotFoundError, match="^no model has the id 'nope'; models: a, b; "):
        store.get("nope")
    with pytest.raises(OSError, match=rf"^\[Errno {number}\] .*/spoiled"):
        store.get("spoiled")
    assert unreadable.exists(), "a transient disk error counts as deletion of the model"


def test_scratch_of_killed_processes_is_removed_at_start(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "a")
    for name in (".deleted-0001", ".upload-x", ".added-x"):
        left = Path(shutil.copytree(tiny_model, layout.models / name))
        (left / ".lock").touch()  # no process holds this lock any more
    clean_up_models(layout)
    assert [path.name for path in layout.models.iterdir()] == ["a"]


@pytest.fixture
def adapter(tiny_model: Path, tmp_path: Path) -> Path:
    return write_adapter(tiny_model, tmp_path / "adapter")


def _write_origin(adapter: Path, base_model: str, revision: str | None, **others: object) -> None:
    origin = {"base_model": base_model, "base_model_revision": revision}
    durable.write_json(adapter / "lineage.json", {**origin, **others})


@pytest.mark.usefixtures("preloaded_check")
def test_adapter_names_the_base_that_its_caller_passes(
    store: ModelStore, tiny_model: Path, adapter: Path
) -> None:
    base = store.add(tiny_model, "base")
    assert base.revision == find_revision(str(base.path))
    for model_id, publish in (("a", store.add), ("b", store.install)):
        added = publish(adapter, model_id, base_id="base")
        assert (added.is_adapter, added.task, base.is_adapter) == (True, "causal_lm", False)
        assert added.lineage.base_model_revision == base.revision
        assert store.get_base(added) == base
        added.verify()
    assert not (adapter / "lineage.json").exists()
    imported = store.import_directory(adapter, "c", base_id="base")
    settings = json.loads((imported.path / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == "base"
    assert (store.get_base(imported), store.reader.find_root(imported)) == (base, "base")


def test_published_adapter_has_the_base_of_its_lineage(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, adapter: Path
) -> None:
    base = store.add(tiny_model, "base")
    _write_origin(adapter, "base", base.revision, run_id="r")
    durable.seal_directory(adapter)
    before = (adapter / durable.MANIFEST_NAME).read_bytes()
    published = store.publish(_copy(adapter, layout), "a")
    assert store.get_base(published) == base
    assert (published.path / durable.MANIFEST_NAME).read_bytes() == before


def test_adapter_finds_its_base_under_another_id(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path, adapter: Path
) -> None:
    """The lineage names the revision of a stored model, or the weights of a folder."""
    store.add(other_model, "there")
    base = store.add(tiny_model, "here")
    for number, revision in enumerate((base.revision, find_revision(str(tiny_model)))):
        origin = {"base_model": "there", "base_model_revision": revision}
        _write_origin(adapter, "there", revision, run_id="r", root=origin)
        durable.seal_directory(adapter)
        published = store.publish(_copy(adapter, layout), f"a-{number}")
        assert (published.lineage.base_model, published.lineage.run_id) == ("here", "r")
        assert store.get_base(published) == base
        assert store.reader.find_root(published) == "here"
        published.verify()
    _write_origin(adapter, "owner/name", "0" * 40)  # a commit on the hub cannot be compared
    assert store.get_base(store.add(adapter, "b", base_id="here")) == base


@pytest.mark.usefixtures("preloaded_check")
def test_adapter_without_its_base_is_refused(
    store: ModelStore, tiny_model: Path, other_model: Path, adapter: Path
) -> None:
    base, other = store.add(tiny_model, "base"), store.add(other_model, "other")
    for publish in (store.add, store.install, store.import_directory):
        (adapter / "lineage.json").unlink(missing_ok=True)
        with pytest.raises(ValueError, match=r"^the adapter names no base model in a lineage\.jso"):
            publish(adapter, "a")
        with pytest.raises(ValueError, match="^the base model 'none' is no model of the store; "):
            publish(adapter, "a", base_id="none")
        _write_origin(adapter, "base", base.revision)
        with pytest.raises(
            ValueError, match="^the adapter is for base model 'base' of revision sh"
        ):
            publish(adapter, "a", base_id="other")
        _write_origin(adapter, "base", f"sha256:{'0' * 64}")
        with pytest.raises(
            ValueError, match="^the adapter is for base model 'base' of .*, and no "
        ):
            publish(adapter, "a")
    assert other.exists()
    _write_origin(adapter, "base", base.revision)
    store.add(adapter, "a")
    with pytest.raises(ValueError, match="^the base model 'a' is an adapter itself; "):
        store.add(adapter, "b", base_id="a")
    with pytest.raises(InvalidRequestError, match="^base_model is 'base', and the model to be add"):
        store.install(tiny_model, "b", base_id="base")


def test_base_of_an_adapter_cannot_be_deleted(
    store: ModelStore, tiny_model: Path, other_model: Path, adapter: Path
) -> None:
    store.add(tiny_model, "base")
    store.add(other_model, "other")
    store.add(adapter, "a", base_id="base")
    with pytest.raises(
        ModelInUseError, match="^model 'base' is the base model of adapters, .*: 'a'; delete them"
    ):
        store.delete("base")
    store.delete("other")
    store.delete("a")
    store.delete("base")


def test_base_is_kept_while_its_adapter_is_added(
    store: ModelStore, tiny_model: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(tiny_model, "base")
    seal = durable.seal_directory
    refusals: list[str] = []

    def delete_first(directory: Path) -> None:
        seal(directory)
        with pytest.raises(ModelInUseError, match="^model 'base' is loaded by a generator or bei"):
            store.delete("base")
        refusals.append("base")

    monkeypatch.setattr(durable, "seal_directory", delete_first)
    ways: list[Callable[..., object]] = [store.add, store.install, store.import_directory]
    for number, publish in enumerate(ways):
        publish(adapter, f"a-{number}", base_id="base")
        store.delete(f"a-{number}")
        adapter = adapter if adapter.exists() else write_adapter(tiny_model, adapter)
    assert len(refusals) == 3


def test_base_that_is_deleted_while_its_adapter_is_published_is_missed(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    adapter: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = store.add(tiny_model, "base")
    _write_origin(adapter, "base", base.revision, run_id="r")
    durable.seal_directory(adapter)

    def delete_first(directory: Path) -> None:
        verify_directory(directory)
        store.delete("base")
        store.add(tiny_model, "base")  # another one with the same id and content

    monkeypatch.setattr(model_store, "verify_directory", delete_first)
    with pytest.raises(
        ModelNotFoundError, match="^the base model 'base' of adapter 'a' has been de"
    ):
        store.publish(_copy(adapter, layout), "a")
    assert [model.id for model in store.list_models()] == ["base"]


def test_base_is_kept_for_an_adapter_that_cannot_be_read(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    adapter: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store.add(tiny_model, "base")
    store.add(adapter, "a", base_id="base")
    lineage = layout.model("a") / "lineage.json"
    content = lineage.read_bytes()
    lineage.write_text("[]")
    with pytest.raises(ModelInUseError, match="^model 'base' is the base .*cannot be read: 'a'; "):
        store.delete("base")
    lineage.write_bytes(content)

    def find(reader: ModelReader, model_id: str) -> StoredModel | None:
        if model_id == "a":
            raise OSError(errno.EMFILE, "Too many open files")
        return original(reader, model_id)

    original = ModelReader.find
    monkeypatch.setattr(ModelReader, "find", find)
    with pytest.raises(ModelInUseError, match="^model 'base' is the base .*cannot be read: 'a'; "):
        store.delete("base")


def test_lost_base_of_an_adapter_is_reported(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path, adapter: Path
) -> None:
    base = store.add(tiny_model, "base")
    added = store.add(adapter, "a", base_id="base")
    shutil.rmtree(base.path)
    with pytest.raises(
        EngineDeadError, match="^adapter 'a' needs its base model 'base', which does"
    ):
        store.get_base(added)
    store.add(other_model, "base")
    with pytest.raises(
        EngineDeadError, match="^adapter 'a' is for model 'base' of revision sha256:"
    ):
        store.get_base(added)
    (layout.model("a") / "lineage.json").write_text("{}")
    with pytest.raises(EngineDeadError, match="^adapter 'a' names no base model: its lineage.json"):
        store.get_base(store.get("a"))
    (layout.model("a") / "lineage.json").write_text("[]")
    with pytest.raises(EngineDeadError, match="^the base model of adapter 'a' is unknown: "):
        store.get_base(store.get("a"))
