"""Creation of fine-tuning jobs: a request is validated completely, and becomes a queued run."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NotRequired, TypedDict

from apps.errors import InvalidInputError, invalid_input, refuse_full_disk
from apps.file_index import FileCheck
from apps.file_store import FileStore
from apps.fine_tuning.index.model_sizes import ModelSizes
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.index.run_lookup import require_lineage
from apps.fine_tuning.job_requests import SERVER_SETTINGS, FineTuneRequest, parse_fine_tune
from apps.fine_tuning.validation.row_validation import (
    RowCounts,
    SlowRowsError,
    are_quick,
    build_default_spec,
    count_rows,
    find_known_files,
    prepare_rows,
)
from apps.settings import UsageLimits
from apps.usage_limits import check_job_counts, check_job_size, check_model_space
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from storage import durable
from storage.layout import StorageLayout, new_id
from storage.scratch import build_in_scratch
from system.library_imports import import_transformers
from training.data.faults import DataError
from training.monitoring.data_report import report_data
from training.preflight.resources import ResourceError, check_resources
from training.run.folder import RunFolder
from training.run.run_record import RunRecord
from training.settings.task_settings import DEFAULT_TASK
from training.spec import SettingError, TrainingSpec
from training.task import find_task

BUILDING_PREFIX = ".building-"
SERVED_TASKS = (DEFAULT_TASK, "sequence_classification")
"""The tasks whose models this application serves."""


class TokenObject(TypedDict):
    """A piece of a row: the text of a token, and whether it is learned."""

    text: str
    learned: bool


class RowObject(TypedDict):
    """One row as tokens."""

    line: int
    is_part: bool
    tokens: list[TokenObject]


class PreviewObject(TypedDict):
    """The first rows of a file as tokens, with the counts of all rows as far as known."""

    object: Literal["file.preview"]
    num_rows: int | None
    num_tokens: int | None
    num_learned_tokens: int | None
    num_truncated_rows: int | None
    num_dropped_rows: int | None
    num_split_rows: int | None
    format: str
    max_length: int
    ignored_keys: dict[str, int]
    rows: list[RowObject]
    learned_share: NotRequired[float]
    task: NotRequired[str]
    label_counts: NotRequired[dict[str, int]]
    model: NotRequired[str]


class DefaultsObject(TypedDict):
    """The default settings of a job for a model, and their schema."""

    object: Literal["fine_tuning.defaults"]
    model: str
    training: Mapping[str, Any]
    schema: Mapping[str, Any]


class JobCreator:
    """Creates runs from requests, and previews how rows become tokens."""

    def __init__(
        self,
        layout: StorageLayout,
        runs: RunIndex,
        sizes: ModelSizes,
        limits: UsageLimits,
        reserved_cpus: float,
        reserved_gpus: float,
    ) -> None:
        self._layout = layout
        self._runs = runs
        self._sizes = sizes
        self._limits = limits
        self._lock = Lock()  # locked from counting the jobs until one is added
        self._files = FileStore(layout)
        self._models = ModelStore(layout)
        self._reserved_cpus, self._reserved_gpus = reserved_cpus, reserved_gpus

    def create(self, request: FineTuneRequest, nodes: Sequence[Mapping[str, float]]) -> RunFolder:
        """Validate a request for a fine-tuning job, and create its run, which is queued.

        Large files are read later; the status of the run is then `validating_files`. Raises
        `ServingError` or `ApiError` for a job that cannot work, for too many jobs, or if there is
        no room for one more model of this size.
        """
        check_job_counts(self._runs, self._limits)  # before the rows are read
        model = self._models.resolve(request.model)
        require_lineage(model)  # the new model's lineage refers to it
        new_bytes = self._sizes.measure_model(model.id)
        check_model_space(self._sizes.measure(), self._limits, new_bytes)
        with ExitStack() as locks, refuse_full_disk():
            # Locked until a record states that they are needed.
            locks.enter_context(model.lock_shared())
            for file_id in request.list_files():
                locks.enter_context(self._files.lock_shared(file_id))
            return self._create_from(model, request, nodes)

    def preview(
        self, file_id: str, model: str, num_rows: int, training: Mapping[str, Any]
    ) -> PreviewObject:
        """Show how the first rows of a file become tokens for a model.

        `training` has settings as in a job. Raises as `create` does.
        """
        import_transformers()
        from training.data.text.preview import preview_rows, split_tokens

        stored = self._models.resolve(model)
        file = self._files.find_content(file_id)
        request = parse_fine_tune(
            {"model": model, "training_file": file_id, "training": dict(training)}
        )
        spec = request.resolve_settings(build_default_spec(self._models, stored, str(file)))
        known = find_known_files(self._layout, spec)
        try:
            with invalid_input("model", only=SettingError):
                shown = preview_rows(spec, num_rows, known)
        except DataError as exc:
            self._files.check_unchanged(known)
            raise InvalidInputError(str(exc), param="file") from exc
        counts = self._count_rows(file_id, file, spec, None if training else stored.id)
        rows: list[RowObject] = [
            {
                "line": row.line,
                "is_part": row.is_part,
                "tokens": [
                    {"text": text, "learned": learned}
                    for text, learned in split_tokens(row, shown.tokenizer)
                ],
            }
            for row in shown.rows
        ]
        preview: PreviewObject = {
            "object": "file.preview",
            "num_rows": None,
            "num_tokens": None,
            "num_learned_tokens": None,
            "num_truncated_rows": None,
            "num_dropped_rows": None,
            "num_split_rows": None,
            "format": shown.format,
            "max_length": shown.max_length,
            "ignored_keys": dict(shown.ignored_keys),
            "rows": rows,
        }
        return {**preview, **counts} if counts is not None else preview

    def _count_rows(
        self, file_id: str, file: Path, spec: TrainingSpec, model_id: str | None
    ) -> RowCounts | FileCheck | None:
        """Return the counts of a file's rows, by reading them if that is quick.

        Otherwise returns the counts of the file's check if that used `model_id`, and None if not;
        `model_id` is None if settings were given. Raises as `prepare_rows` does.
        """
        if are_quick([file]):
            with suppress(SlowRowsError):
                return count_rows(prepare_rows(self._layout, spec))
        checked = self._files.get(file_id).get("check")
        return checked if checked and checked["model"] == model_id else None

    def get_defaults(self, model: str) -> DefaultsObject:
        """Return the default settings of a fine-tuning job for `model`, and their schema."""
        schema = TrainingSpec.model_json_schema()["properties"]
        spec = build_default_spec(self._models, self._models.resolve(model), "-")
        return {
            "object": "fine_tuning.defaults",
            "model": model,
            "training": spec.model_dump(exclude=set(SERVER_SETTINGS)),
            "schema": {key: value for key, value in schema.items() if key not in SERVER_SETTINGS},
        }

    def _create_from(
        self, model: StoredModel, request: FineTuneRequest, nodes: Sequence[Mapping[str, float]]
    ) -> RunFolder:
        import_transformers()
        from training.data.prepare import link_data
        from training.pipeline.architecture import check_architecture
        from training.preflight.preflight import check_base_model

        paths = {file_id: self._files.find_content(file_id) for file_id in request.list_files()}
        training_file = str(paths[request.training_file])
        defaults = build_default_spec(self._models, model, training_file)
        spec = request.resolve_settings(defaults, paths)
        _check_served(spec)
        if spec.task == DEFAULT_TASK:
            _check_generates(model)
        with invalid_input("model", only=SettingError):
            check_base_model(str(model.path), find_task(spec.task))
        with invalid_input("training", only=SettingError):
            check_architecture(spec)
        check_job_size(spec, self._limits)
        with invalid_input(only=ResourceError):
            check_resources(spec, nodes, self._reserved_cpus, self._reserved_gpus)
        prepared = None
        if are_quick(list(paths.values())):
            with suppress(SlowRowsError):
                prepared = prepare_rows(self._layout, spec)
        record = RunRecord(
            id=new_id("ftjob"),
            status="validating_files" if prepared is None else "queued",
            created_at=int(time.time()),
            priority=request.priority,
            training_filename=self._files.get(request.training_file)["filename"],
            writer="queue",
            request={**request.model_dump(mode="json"), "model": model.id},
        )
        with build_in_scratch(self._layout.runs, BUILDING_PREFIX) as building:
            run = RunFolder(building)
            if prepared is None:
                run.events.add("Checking the files")
            else:
                link_data(prepared, run.data)
                report_data(run, prepared.summary)
                run.events.add("Queued", code="queued")
            run.create(spec, record)
            with self._lock:
                check_job_counts(self._runs, self._limits)
                durable.move_directory(building, self._layout.run(record.id))
        return RunFolder(self._layout.run(record.id))


def _check_served(spec: TrainingSpec) -> None:
    """Raise `InvalidInputError` for a task whose models this application cannot serve."""
    if spec.task not in SERVED_TASKS:
        raise InvalidInputError(
            f"training.task is {spec.task!r}, whose models are not served: expected "
            f"{' or '.join(map(repr, SERVED_TASKS))}. Train it with 'python -m training'",
            param="training",
        )


def _check_generates(model: StoredModel) -> None:
    """Raise `InvalidInputError` for a language model's job whose model is of another kind."""
    if model.task != "causal_lm":
        raise InvalidInputError(
            f"{model.id!r} has the task {model.task!r}, expected a language model: choose another "
            "model, or set the task in 'training'",
            param="model",
        )
