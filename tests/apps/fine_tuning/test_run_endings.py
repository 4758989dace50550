"""The end of runs: the file of metrics, and full disks."""

from pathlib import Path

import pytest

from apps.errors import ApiError
from apps.file_store import FileStore
from apps.fine_tuning.index.run_lookup import name_model
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.run_endings import finish_published
from serving.store.model_names import LATEST_ALIAS
from serving.store.model_store import ModelStore
from storage import durable
from storage.layout import StorageLayout
from tests.apps.conftest import add_job, copy_model, create_run
from tests.apps.fine_tuning.conftest import FIGURES, fill_disk, list_messages
from tests.tiny_encoder import build_tiny_encoder
from training.run.folder import RunFolder

pytestmark = pytest.mark.anyio


async def test_metrics_of_ended_run_are_stored_as_file(
    queue: RunQueue, layout: StorageLayout, file_id: str
) -> None:
    run = await create_run(queue, file_id)
    rest = dict.fromkeys(("num_steps", "epoch", "tokens_per_s", "elapsed_s", "remaining_s"), 1.0)
    run.metrics.add({"step": 1, "loss": 2.5, "learning_rate": 1e-4, **rest})
    run.metrics.add({"step": 2, "loss": 2.25, "learning_rate": 5e-5, "eval_loss": 2.0, **rest})
    job = await queue.cancel(run.path.name)
    (result,) = job["result_files"]
    files = FileStore(layout)
    assert files.get(result)["purpose"] == "fine-tune-results"
    assert files.get(result)["status"] == "processed"
    head, *lines = files.find_content(result).read_text().splitlines()
    assert head.startswith("step,train_loss,valid_loss,learning_rate")
    assert [line.split(",")[:4] for line in lines] == [
        ["1", "2.5", "", "0.0001"],
        ["2", "2.25", "2.0", "5e-05"],
    ]


async def test_run_ends_when_disk_is_full(
    queue: RunQueue, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    run.metrics.add(FIGURES)
    monkeypatch.setattr(FileStore, "add", fill_disk)
    assert (await queue.cancel(run.path.name))["status"] == "cancelled"
    assert run.read_record().result_file is None


async def test_end_that_cannot_be_recorded_at_first_adds_one_event(
    queue: RunQueue, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "update_record", fill_disk)
        with pytest.raises(ApiError, match="^the server's disk has no room for it$") as caught:
            await queue.cancel(run.path.name)
        assert caught.value.status == 507
        for _ in range(3):
            await queue.reconcile()
    await queue.reconcile()
    assert run.read_record().status == "cancelled"
    assert list_messages(run).count("The fine-tune was cancelled") == 1


async def test_published_model_becomes_latest_when_disk_is_full(
    queue: RunQueue,
    layout: StorageLayout,
    file_id: str,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = await create_run(queue, file_id)
    await queue.reconcile()
    run.update_record(status="running")
    run.metrics.add(FIGURES)
    model_id = name_model(run.read_record())
    durable.write_json(
        copy_model(tiny_model, run.model) / "lineage.json", {"run_id": run.path.name}
    )
    models = ModelStore(layout)
    models.publish(run.model, model_id)
    monkeypatch.setattr(FileStore, "add", fill_disk)
    finish_published(layout, run)
    assert (run.read_record().status, run.read_record().model_id) == ("succeeded", model_id)
    assert models.resolve(LATEST_ALIAS).id == model_id


@pytest.mark.parametrize(
    ("suffix", "alias", "told"),
    [
        ("mood", "mood", ", and 'mood' points to it"),
        (None, None, ""),
        ("latest", None, ""),
        ("text", None, "; the alias 'text' stays with a model of the task 'causal_lm'"),
        (
            "tiny",
            None,
            "; no alias points to it: 'tiny' is the id of a model and cannot be an alias too",
        ),
    ],
)
def test_classifier_moves_only_alias_of_its_suffix(
    layout: StorageLayout, tmp_path: Path, suffix: str | None, alias: str | None, told: str
) -> None:
    store = ModelStore(layout)
    store.point_alias("text", "tiny")
    run = add_job(layout, "tiny")
    run.update_record(request={**run.read_record().request, "suffix": suffix})
    model_id = name_model(run.read_record())
    store.add(build_tiny_encoder(tmp_path / "m", num_labels=2), model_id)
    before = {name: one.model_id for name, one in store.read_aliases().items()}
    finish_published(layout, run)
    after = {name: one.model_id for name, one in store.read_aliases().items()}
    assert after == {**before, **({alias: model_id} if alias else {})}
    assert f"Published as {model_id}{told}" in list_messages(run)
