import json
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.errors import ModelNotFoundError
from serving.model_store import ModelStore
from storage import durable
from storage.layout import StorageLayout


def _copy(source: Path, layout: StorageLayout) -> Path:
    return Path(shutil.copytree(source, layout.models / ".building"))


def test_published_model_is_resolved_by_its_id(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    building = _copy(tiny_model, layout)
    durable.write_json(building / "lineage.json", {"run_id": "run-1", "created_at": 1700000000})
    published = store.publish(building, "m-1")

    assert store.resolve("m-1") == store.get("m-1") == published
    assert published.path == layout.model("m-1")
    assert (published.created_at, published.lineage["run_id"]) == (1700000000, "run-1")
    assert published.fingerprint.startswith("fp_")
    assert not building.exists()
    durable.verify_directory(published.path)


def test_added_model_leaves_its_source_alone(
    store: ModelStore, tiny_model: Path, other_model: Path
) -> None:
    before = sorted(path.name for path in tiny_model.iterdir())
    first, second = store.add(tiny_model, "base"), store.add(other_model, "base-2")
    assert sorted(path.name for path in tiny_model.iterdir()) == before
    assert [model.id for model in store.list_models()] == ["base", "base-2"]
    assert first.fingerprint != second.fingerprint
    assert first.lineage == {}


def test_snapshot_of_the_hub_cache_is_copied_with_its_links_followed(
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
    with pytest.raises(ValueError, match="other.txt is a link that leaves"):
        store.add(snapshot, "base-2")


def test_ids_are_not_reused(store: ModelStore, tiny_model: Path) -> None:
    store.add(tiny_model, "base")
    with pytest.raises(FileExistsError, match="'base' is published already"):
        store.add(tiny_model, "base")


def test_half_a_model_is_invisible(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    _copy(tiny_model, layout)
    shutil.copytree(tiny_model, layout.models / "no-manifest")
    assert store.list_models() == []
    with pytest.raises(ModelNotFoundError, match="'no-manifest'"):
        store.get("no-manifest")


def test_unknown_name_is_told_what_there_is(store: ModelStore, tiny_model: Path) -> None:
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
    written = json.loads(layout.aliases.read_text())
    assert written["latest"]["model"] == "a"
    assert set(written["latest"]["history"][0]) == {"model", "at"}


def test_alias_must_point_to_a_model_and_not_be_one(store: ModelStore, tiny_model: Path) -> None:
    store.add(tiny_model, "a")
    with pytest.raises(ModelNotFoundError, match="'b'"):
        store.point_alias("latest", "b")
    with pytest.raises(ValueError, match="'a' is the id of a model"):
        store.point_alias("a", "a")
    with pytest.raises(ValueError, match="not a valid id"):
        store.point_alias("../x", "a")
    store.point_alias("latest", "a")
    with pytest.raises(ValueError, match="'latest' is an alias"):
        store.add(tiny_model, "latest")


def test_writers_at_once_lose_no_alias(
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


def _link_outside(model: Path) -> None:
    (model / "extra.txt").symlink_to("../../../etc/hostname")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda model: (model / "config.json").unlink(), "no config.json"),
        (lambda model: (model / "model.safetensors").unlink(), "no weights"),
        (lambda model: (model / "tokenizer.json").unlink(), "no tokenizer"),
        (lambda model: (model / "pytorch_model.bin").touch(), "pytorch_model.bin may hold pickled"),
        (lambda model: (model / "optimizer.PT").touch(), "optimizer.PT may hold pickled"),
        (_set_key("config.json", "auto_map", {}), "config.json asks for code"),
        (_set_key("tokenizer_config.json", "auto_map", {}), "tokenizer_config.json asks for code"),
        (_link_outside, "extra.txt is a link that leaves"),
        (lambda model: (model / "config.json").write_text("{"), "config.json is not valid JSON"),
        (lambda model: (model / "lineage.json").write_text("[]"), "lineage.json holds a list"),
    ],
)
def test_unsafe_or_incomplete_models_are_refused(
    spoil: Callable[[Path], None],
    message: str,
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
) -> None:
    building = _copy(tiny_model, layout)
    spoil(building)
    for enter in (store.publish, store.add):
        with pytest.raises(ValueError, match=message):
            enter(building, "m")
    assert store.list_models() == []
    assert [path.name for path in layout.models.iterdir()] == [".building"]
