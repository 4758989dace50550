"""Creation of jobs, previews of files and the defaults."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from apps.bundled import (
    DEMONSTRATION_MODEL,
    read_adapter_settings,
    read_demonstration_settings,
)
from apps.errors import ApiError, InvalidInputError
from apps.file_store import FileStore
from apps.fine_tuning import default_settings
from apps.fine_tuning.default_settings import describe_defaults, list_presets
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.index.run_lookup import name_model
from apps.fine_tuning.job_requests import parse_fine_tune
from apps.fine_tuning.job_responses import describe_job
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.validation.adapter_jobs import check_adapter_job, check_adapter_layers
from apps.fine_tuning.validation.row_validation import check_file
from serving.errors import InvalidRequestError
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from tests.apps.conftest import ROW, create_run
from tests.apps.fine_tuning.conftest import fill_disk
from tests.peft_adapters import LAYERS, write_adapter
from training.data.faults import DataError
from training.preflight.adapter_check import plan_learned_tensors
from training.run.folder import RunFolder
from training.settings.adapter_settings import AdapterSettings
from training.settings.task_settings import DEFAULT_TASK
from training.spec import TrainingSpec

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"training": {"learning_rate": 0}}, InvalidInputError, "learning_rate is 0: "),
        (
            {"hyperparameters": {"batch_size": -2}},
            InvalidRequestError,
            "'hyperparameters.batch_size': expected 'auto' or a number of at least 1, found -2",
        ),
        ({"hyperparameters": {"batch_size": 3}}, ApiError, "batch_size is 3, expected .* of 2"),
        (
            {"training": {"task": "image_classification"}},
            InvalidInputError,
            "base_model 'tiny' cannot be fine-tuned: .* no image classifier for",
        ),
        (
            {"training": {"strategy": "pipeline", "num_workers": 3}},
            ApiError,
            "the pipeline has 3 stages, and base_model 'tiny' has 2 decoder layers: ",
        ),
        (
            {"training": {"adapter": {"rank": 33}}},
            ApiError,
            "adapter.rank is 33, more than 'model.layers.0.self_attn.q_proj' of 32 × 32 has",
        ),
        (
            {
                "training": {
                    "task": "sequence_classification",
                    "adapter": {"export": "adapter"},
                    "task_settings": {"labels": ["a", "b"]},
                }
            },
            InvalidInputError,
            "adapter.export is 'adapter', and training.task is 'sequence_classification', and ad",
        ),
        (
            {"training": {"adapter": {"export": "adapter", "modules_to_save": ["norm"]}}},
            InvalidInputError,
            "adapter.export is 'adapter', and adapter.modules_to_save has 'norm', and an adapter",
        ),
        (
            {"training": {"adapter": {"export": "adapter", "target_modules": ["lm_head"]}}},
            InvalidInputError,
            "adapter.export is 'adapter', and adapter.target_modules has 'lm_head', and adapters",
        ),
        ({"training": {"num_workers": 64}}, ApiError, "64 workers × 0.5 CPUs = 32 CPUs"),
        (
            {"training": {"train_file": "/etc/passwd"}},
            ApiError,
            r"\['train_file'\] cannot be set in 'training'",
        ),
        ({"training_file": "file-gone"}, ApiError, "there is no file 'file-gone'"),
        ({"training_file": "../../etc"}, ApiError, "there is no file '../../etc'"),
        ({"suffix": "../x"}, InvalidRequestError, "'suffix': "),
        ({"trainig_file": "x"}, InvalidRequestError, "'trainig_file' is not a known parameter$"),
        (
            {"training": {"max_length": 1000}},
            InvalidInputError,
            "max_length is 1000, but 'tiny' has a context of 128 tokens",
        ),
        (
            {"training": {"num_workers": 0}, "hyperparameters": {"batch_size": 2}},
            InvalidInputError,
            "num_workers is 0: ",
        ),
        ({"validation_file": "file-gone"}, ApiError, "there is no file 'file-gone'"),
        (
            {"validation_file": "file-rows", "training": {"validation_fraction": 0.5}},
            InvalidInputError,
            "validation_file and validation_fraction are set",
        ),
        ({"metadata": {"k" * 65: "v"}}, InvalidRequestError, "'metadata"),
        ({"priority": 101}, InvalidRequestError, "'priority': "),
    ],
)
async def test_invalid_job_request_is_refused_without_creating_run(
    queue: RunQueue, layout: StorageLayout, file_id: str, change: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=f"^{message}"):
        await queue.create({"model": "latest", "training_file": file_id, **change})
    assert RunIndex(layout).scan().runs == []


@pytest.mark.parametrize("task", ["causal_lm", "preference"])
async def test_job_may_leave_an_adapter(layout: StorageLayout, file_id: str, task: str) -> None:
    training = {"task": task, "adapter": {"export": "adapter", "init": "pissa", "rank": 16}}
    request = parse_fine_tune({"model": "m", "training_file": file_id, "training": training})
    base = str(layout.model("tiny"))
    sources = {"base_model": base, "train_file": "-", "task": task}
    spec = request.resolve_settings(TrainingSpec.model_validate(sources))
    assert spec.adapter is not None
    assert spec.adapter.export == "adapter"
    check_adapter_job(spec)
    planned = plan_learned_tensors(spec)
    assert planned is not None
    check_adapter_layers(spec, planned)
    renamed = {name.replace("mlp", "ffn"): shape for name, shape in planned.shapes.items()}
    refusal = (
        "^adapter.export is 'adapter', and adapter.target_modules is 'auto', and the adapter has "
        r"tensors for 'model\.layers\.0\.ffn\.down_proj', .* match no layer"
    )
    with pytest.raises(InvalidInputError, match=refusal):
        check_adapter_layers(spec, planned._replace(shapes=renamed))
    request = parse_fine_tune(
        {"model": "m", "training_file": file_id, "training": {"adapter": {"rank": 4}}}
    )
    merged = request.resolve_settings(TrainingSpec.model_validate(sources))
    assert merged.adapter is not None
    assert merged.adapter.export == "merged"  # the default of jobs
    check_adapter_job(merged)


async def test_job_from_an_adapter_continues_it(
    queue: RunQueue, layout: StorageLayout, file_id: str, tmp_path: Path
) -> None:
    base = layout.model("tiny")
    store = ModelStore(layout)
    store.add(write_adapter(base, tmp_path / "adapter"), "a", base_id="tiny")
    defaults = describe_defaults(ModelStore(layout), "a")
    whole = describe_defaults(ModelStore(layout), "tiny")
    assert defaults["tasks"] == ["causal_lm", "preference"]
    assert list(defaults["presets"]) == ["quick", "balanced", "thorough"]  # it is one already
    found = AdapterSettings.model_validate(defaults["training"]["adapter"])
    targets = tuple(sorted(LAYERS))
    expected = {"rank": 4, "alpha": 8.0, "target_modules": targets, "export": "adapter"}
    assert found == AdapterSettings.model_validate(expected)
    rates = [one["training"]["learning_rate"] for one in (defaults, whole)]
    assert rates[0] == pytest.approx(10 * rates[1])
    assert (await queue.preview(file_id, "a", 1, {}))["rows"]
    store.point_alias("latest", "a")
    job = await queue.create(
        {
            "model": "latest",
            "training_file": file_id,
            "training": {"adapter": {"dropout": 0.1, "export": "merged"}},
        }
    )
    spec = RunFolder(layout.run(job["id"])).read_spec()
    assert job["model"] == "a"
    assert (spec.base_model, spec.base_adapter) == (str(base), str(layout.model("a")))
    changed = {**expected, "dropout": 0.1, "export": "merged"}
    assert spec.adapter == AdapterSettings.model_validate(changed)
    check_file(layout, file_id, is_quick=True)  # as the base of `latest` reads it
    check = FileStore(layout).get(file_id)["check"]
    assert check is not None
    assert check["model"] == "tiny"


@pytest.mark.parametrize(
    ("training", "refusal"),
    [
        ({"adapter": {"rank": 16}}, "adapter.rank is 16, and the adapter to continue has 4: "),
        ({"adapter": {"method": "dora"}}, "adapter.method is 'dora', and the adapter to continue "),
        ({"adapter": {"init": "pissa"}}, "adapter.init is 'pissa', and a continued adapter starts"),
        ({"adapter": None}, "training.adapter is null, and model 'a' is an adapter, which a job "),
        ({"adapter": 3}, r"adapter .*\b3\b"),
        ({"base_adapter": "/etc"}, r"\['base_adapter'\] cannot be set in 'training'"),
        ({"loop": "a.b:c"}, "training.loop is set, and model 'a' is an adapter, which a loop "),
        (
            {"task": "sequence_classification"},
            "base_adapter is set, and task is 'sequence_classification', whose adapters have",
        ),
    ],
)
async def test_job_that_cannot_continue_an_adapter_is_refused(
    queue: RunQueue,
    layout: StorageLayout,
    file_id: str,
    tmp_path: Path,
    training: dict[str, Any],
    refusal: str,
) -> None:
    adapter = write_adapter(layout.model("tiny"), tmp_path / "adapter")
    ModelStore(layout).add(adapter, "a", base_id="tiny")
    with pytest.raises(InvalidInputError, match=f"^{refusal}"):
        await queue.create({"model": "a", "training_file": file_id, "training": training})
    assert RunIndex(layout).scan().runs == []


async def test_task_without_serving_is_refused(
    queue: RunQueue, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_settings, "list_served_tasks", lambda: ("causal_lm",))
    body = {"model": "latest", "training_file": file_id}
    with pytest.raises(InvalidInputError, match="'image_classification', whose models are not"):
        await queue.create({**body, "training": {"task": "image_classification"}})


async def test_invalid_rows_are_named_without_creating_run(
    queue: RunQueue, layout: StorageLayout, tmp_path: Path
) -> None:
    rows = tmp_path / "bad.jsonl"
    rows.write_text(json.dumps(ROW) + "\n" + json.dumps({"prompt": "x"}) + "\n")
    FileStore(layout).add("file-bad", rows.read_bytes(), "bad.jsonl")
    with pytest.raises(
        ApiError,
        match=r"^bad.jsonl: 1 of 2 rows .*'completion' is missing, .* \(line 2\)$",
    ) as caught:
        await queue.create({"model": "tiny", "training_file": "file-bad"})
    assert caught.value.param == "training_file"
    assert isinstance(caught.value.__cause__, DataError)
    assert RunIndex(layout).scan().runs == []


async def test_openai_hyperparameters_are_mapped_to_training_settings(
    queue: RunQueue, file_id: str
) -> None:
    asked = {"n_epochs": 2, "batch_size": 8, "learning_rate_multiplier": 0.5}
    run = await create_run(
        queue,
        file_id,
        seed=11,
        method={"type": "supervised", "supervised": {"hyperparameters": asked}},
    )
    spec = run.read_spec()
    assert (spec.epochs, spec.micro_batch_size, spec.learning_rate, spec.seed) == (2, 4, 5e-5, 11)
    assert describe_job(run)["hyperparameters"]["batch_size"] == 8


async def test_job_shows_its_creation_request(queue: RunQueue, file_id: str) -> None:
    run = await create_run(queue, file_id, suffix="bakery", metadata={"team": "ovens"})
    job = describe_job(run)
    assert job["model"] == "tiny"
    assert job["metadata"] == {"team": "ovens"}
    assert name_model(run.read_record()).startswith("tiny-bakery-")
    assert "storage" not in json.dumps(job), "the response contains a path of the server"


async def test_validation_rows_are_read_from_separate_file(
    queue: RunQueue, layout: StorageLayout, file_id: str
) -> None:
    FileStore(layout).add("file-more", f"{json.dumps(ROW)}\n".encode(), "more.jsonl")
    run = await create_run(queue, file_id, validation_file="file-more")
    assert run.read_data_summary()["validation"]["num_rows"] == 1
    assert describe_job(run)["validation_file"] == "file-more"
    FileStore(layout).add("file-bad", b'{"text": 3}\n', "bad.jsonl")
    with pytest.raises(
        ApiError, match="^bad.jsonl: 1 of 1 rows cannot be used: 1 row: 'text' is 3"
    ) as caught:
        await create_run(queue, file_id, validation_file="file-bad")
    assert caught.value.param == "validation_file"


async def test_run_that_cannot_be_written_leaves_no_files(
    queue: RunQueue, layout: StorageLayout, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: RunFolder, *_: Any) -> None:
        assert run.path.is_dir()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "create", fail)
        with pytest.raises(ApiError, match="^the server's disk has no room for it$"):
            await create_run(queue, file_id)
    assert list(layout.runs.iterdir()) == []
    await create_run(queue, file_id)
    assert len(RunIndex(layout).scan().runs) == 1


async def test_file_is_not_deleted_while_job_that_needs_it_is_created(
    queue: RunQueue,
    layout: StorageLayout,
    file_id: str,
    no_quick_validation: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals: list[ApiError] = []

    def delete_file(*_: Any) -> None:
        with pytest.raises(
            ApiError, match=f"^a job that needs file '{file_id}' is being created$"
        ) as caught:
            FileStore(layout).delete(file_id)
        refusals.append(caught.value)

    monkeypatch.setattr("apps.fine_tuning.submission.check_resources", delete_file)
    await create_run(queue, file_id)
    assert [refusal.status for refusal in refusals] == [409]
    FileStore(layout).delete(file_id)
    with pytest.raises(ApiError, match="^there is no file"):
        await create_run(queue, file_id)


async def test_job_creation_on_full_disk_gets_507(
    queue: RunQueue, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.fine_tuning.submission.check_resources", fill_disk)
    with pytest.raises(ApiError, match="^the server's disk has no room for it$") as caught:
        await create_run(queue, file_id)
    assert caught.value.status == 507


async def test_preview_marks_learned_tokens(queue: RunQueue, file_id: str) -> None:
    preview = await queue.preview(file_id, "latest", 2, {})
    assert len(preview["rows"]) == 2
    assert preview["num_rows"] == 4
    learned = "".join(t["text"] for t in preview["rows"][0]["tokens"] if t["learned"])
    assert learned == "Twelve.<|im_end|>"


async def test_preview_applies_training_settings(queue: RunQueue, layout: StorageLayout) -> None:
    rows = b'{"question": "How many?", "answer": "Twelve."}\n' * 4
    FileStore(layout).add("file-columns", rows, "rows.jsonl")
    columns = {"columns": {"prompt": "question", "completion": "answer"}}
    preview = await queue.preview("file-columns", "latest", 1, columns)
    learned = "".join(t["text"] for t in preview["rows"][0]["tokens"] if t["learned"])
    assert learned == "Twelve.<|im_end|>"


async def test_preview_refuses_invalid_settings(queue: RunQueue, file_id: str) -> None:
    for training in ({f"unknown_{number}": 1 for number in range(70)}, {"epochs": "many"}):
        with pytest.raises((InvalidRequestError, InvalidInputError)):
            await queue.preview(file_id, "latest", 1, training)


def test_defaults_have_schema(layout: StorageLayout) -> None:
    defaults = describe_defaults(ModelStore(layout), "latest")
    assert (defaults["task"], defaults["tasks"][0]) == ("causal_lm", "causal_lm")
    assert set(defaults["training"]) == set(defaults["schema"])
    assert "train_file" not in defaults["training"]


def test_presets_are_valid_changes_of_the_defaults(layout: StorageLayout) -> None:
    defaults = describe_defaults(ModelStore(layout), "latest")
    sources = {"base_model": "-", "train_file": "-"}
    specs = {}
    for name, preset in defaults["presets"].items():
        assert preset.keys() <= defaults["training"].keys()
        specs[name] = TrainingSpec.model_validate({**defaults["training"], **preset, **sources})
    assert list(specs) == list(defaults["preset_descriptions"])
    assert specs["adapter"].adapter is not None
    assert specs["adapter"].learning_rate == 10 * defaults["training"]["learning_rate"]
    assert (specs["quick"].epochs, specs["quick"].max_steps) == (1, 20)
    assert specs["thorough"].epochs == 2 * specs["balanced"].epochs
    assert specs["thorough"].has_validation


def test_settings_are_described_by_groups(layout: StorageLayout) -> None:
    schema = describe_defaults(ModelStore(layout), "latest")["schema"]
    assert schema["learning_rate"]["group"] == "optimizer"
    assert all("group" in part for part in schema.values())


def test_preset_of_demonstration_model_is_the_example() -> None:
    sources = {"base_model": "-", "train_file": "-"}
    defaults = TrainingSpec.model_validate({**sources, **read_demonstration_settings(DEFAULT_TASK)})
    preset = list_presets(defaults, DEMONSTRATION_MODEL)["adapter"]
    example = TrainingSpec.model_validate({**sources, **read_adapter_settings()})
    changed = {**defaults.model_dump(), **preset}
    assert TrainingSpec.model_validate(changed) == example
    assert preset.keys() == {"adapter", "learning_rate", "weight_decay", "zero_stage"}
    assert preset["adapter"]["export"] == "adapter"
    classifier = defaults.model_copy(update={"task": "sequence_classification"})
    presets = list_presets(classifier, DEMONSTRATION_MODEL)
    assert presets["adapter"]["adapter"]["export"] == "merged"
    image = defaults.model_copy(update={"task": "image_classification"})
    assert "adapter" not in list_presets(image, DEMONSTRATION_MODEL)
