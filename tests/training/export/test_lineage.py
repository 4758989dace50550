from pathlib import Path

import pytest

from storage import durable
from storage.layout import StorageLayout, open_storage
from tests.model_chain import METRICS, SUMMARY, write_chain, write_nested_lineage
from training.export.lineage import write_lineage
from training.run.folder import RunFolder
from training.run.run_record import RunRecord
from training.spec import TrainingSpec


@pytest.fixture
def layout(tmp_path: Path) -> StorageLayout:
    return open_storage(tmp_path / "storage")


def tune(base: Path, folder: Path) -> Path:
    """Write the lineage of a fine-tune of a model; return its model folder."""
    run = RunFolder(folder / "ftjob-1")
    run.data.mkdir(parents=True)
    durable.write_json(run.data / "summary.json", SUMMARY)
    spec = TrainingSpec(base_model=str(base), train_file="-")
    run.create(spec, RunRecord(id="ftjob-1", created_at=1, base_revision="sha256:ef"))
    (folder / "model").mkdir()
    write_lineage(folder / "model", run, spec, METRICS)
    return folder / "model"


def test_lineage_names_parent_and_root_and_has_constant_size(layout: StorageLayout) -> None:
    names = write_chain(layout, "first", 40)
    files = [layout.model(name) / "lineage.json" for name in names]
    sizes = [file.stat().st_size for file in files]
    assert max(sizes[1:]) - min(sizes[1:]) < 100, "it grows with the number of models before it"
    lineage = durable.read_json(files[-1])
    assert lineage["parent"] == {
        "run_id": "run-00038",
        "base_model": "tuned-00037",
        "base_model_revision": None,
        "checkpoint_step": 7,
        "data": {key: SUMMARY[key] for key in ("name", "fingerprint", "sha256")},
    }
    assert lineage["root"]["base_model"] == "first"
    assert durable.read_json(files[0])["parent"] is None


def test_untuned_base_model_is_root(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    lineage = durable.read_json(tune(tmp_path / "base", tmp_path) / "lineage.json")
    assert lineage["parent"] is None
    assert lineage["root"] == {"base_model": "base", "base_model_revision": "sha256:ef"}


@pytest.mark.parametrize("depth", [1, 2, 1_000])
def test_nested_lineage_of_release_0_1_is_read(tmp_path: Path, depth: int) -> None:
    base = tmp_path / "base"
    write_nested_lineage(base, depth, root="first")
    model = tune(base, tmp_path)
    lineage = durable.read_json(model / "lineage.json")
    assert lineage["root"] == {"base_model": "first", "base_model_revision": None}
    assert lineage["parent"]["run_id"] == f"run-{depth:05d}"
    assert "parent" not in lineage["parent"]
    assert (model / "lineage.json").stat().st_size < 4_000
    assert "first base model | `first`" in (model / "README.md").read_text()


def test_foreign_lineage_is_copied_only_as_short_texts(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    durable.write_json(base / "lineage.json", {"run_id": 5, "base_model": "x" * 10**5, "data": []})
    lineage = durable.read_json(tune(base, tmp_path) / "lineage.json")
    assert lineage["parent"]["run_id"] is None
    assert lineage["parent"]["base_model"] is None
    assert lineage["root"]["base_model"] == "base"
