"""Creation of fine-tuning jobs: a request is validated completely, and becomes a queued run."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from apps.errors import InvalidInputError, invalid_input, refuse_full_disk
from apps.file_index import FileCheck
from apps.file_store import FileStore
from apps.fine_tuning.default_settings import (
    build_default_spec,
    list_offered_tasks,
)
from apps.fine_tuning.index.model_sizes import ModelSizes
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.index.run_lookup import require_lineage
from apps.fine_tuning.job_requests import FineTuneRequest
from apps.fine_tuning.planning.job_estimate import EstimateObject, JobEstimator
from apps.fine_tuning.rows.file_spec import build_file_spec
from apps.fine_tuning.validation.adapter_jobs import check_adapter_job, check_adapter_layers
from apps.fine_tuning.validation.row_validation import (
    RowCountsObject,
    SlowRowsError,
    are_quick,
    count_rows,
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
from training.preflight.requirements import ModelSize
from training.preflight.resources import ResourceError, check_resources
from training.run.folder import RunFolder
from training.run.run_record import RunRecord
from training.spec import SettingError, TrainingSpec
from training.task import find_task

if TYPE_CHECKING:
    from training.data.readers import KnownFile

BUILDING_PREFIX = ".building-"


class TokenObject(TypedDict):
    """A piece of a row: the text of a token, and whether it is learned."""

    text: str
    learned: bool


class RowObject(TypedDict):
    """One row as tokens; of a classifier's file, its texts and labels, and no tokens.

    Each answer of a pair is a row, after the prompt; `is_preferred` says which one is the better.
    `number` counts the rows of the file from 1, `line` is the line on which the row begins.
    """

    number: int
    line: int
    is_part: bool
    tokens: list[TokenObject]
    texts: NotRequired[list[str]]
    labels: NotRequired[list[str]]
    is_preferred: NotRequired[bool]


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
        allowed_loops: Sequence[str] = (),
    ) -> None:
        self._layout = layout
        self._runs = runs
        self._sizes = sizes
        self._limits = limits
        self._lock = Lock()  # locked from counting the jobs until one is added
        self._files = FileStore(layout)
        self._models = ModelStore(layout)
        self._estimator = JobEstimator(layout, runs)
        self._reserved_cpus, self._reserved_gpus = reserved_cpus, reserved_gpus
        self._allowed_loops = allowed_loops

    def create(self, request: FineTuneRequest, nodes: Sequence[Mapping[str, float]]) -> RunFolder:
        """Validate a request for a fine-tuning job, and create its run, which is queued.

        Large files are read later; the status of the run is then `validating_files`. Raises
        `ServingError` or `ApiError` for a job that cannot work, for too many jobs, or if there is
        no room for one more model of this size.
        """
        self.check_counts()  # before the rows are read
        model = self._models.resolve(request.model)
        require_lineage(model)  # the new model's lineage refers to it
        with ExitStack() as locks, refuse_full_disk():
            # Locked until a record states that they are needed.
            locks.enter_context(model.lock_shared())
            for file_id in request.list_files():
                locks.enter_context(self._files.lock_shared(file_id))
            return self._create_from(model, request, nodes)

    def check_counts(self) -> None:
        """Raise `ApiError` if there are too many jobs for another one."""
        check_job_counts(self._runs, self._limits)

    def add(self, building: Path, run_id: str, copied_bytes: int = 0) -> RunFolder:
        """Add a run that was built in another folder, unless there are too many now.

        `copied_bytes` are those of the checkpoints that it will copy.
        """
        with self._lock:
            self.check_counts()
            if copied_bytes:  # others may have been accepted since `check_spec`
                self._check_space(copied_bytes)
            durable.move_directory(building, self._layout.run(run_id))
        return RunFolder(self._layout.run(run_id))

    def preview(
        self, file_id: str, model: str, num_rows: int, training: Mapping[str, Any]
    ) -> PreviewObject:
        """Show how the first rows of a file become tokens for a model, or are labelled.

        A file is previewed for the task in `training`, or else for the one that its check used.
        `training` has settings as in a job. Raises as `create` does.
        """
        import_transformers()
        from training.data.text.preview import preview_rows, split_tokens

        model_id, spec, file, known = build_file_spec(self._layout, file_id, model, training)
        try:
            if not find_task(spec.task).generates:
                return self._preview_labelled(file_id, spec, num_rows, known)
            with invalid_input("model", only=SettingError):
                shown = preview_rows(spec, num_rows, known)
        except DataError as exc:
            self._files.check_unchanged(known)
            raise InvalidInputError(str(exc), param="file") from exc
        counts = self._count_rows(file_id, file, spec, None if training else model_id)
        rows: list[RowObject] = []
        for sample in shown.rows:
            pieces = split_tokens(sample, shown.tokenizer)
            tokens: list[TokenObject] = [
                {"text": text, "learned": learned} for text, learned in pieces
            ]
            rows.append(
                {
                    "number": sample.number,
                    "line": sample.line,
                    "is_part": sample.is_part,
                    "tokens": tokens,
                }
            )
        for row, is_preferred in zip(rows, shown.preferred, strict=False):  # or there are none
            row["is_preferred"] = is_preferred
        preview = _make_preview(shown.format, shown.max_length, shown.ignored_keys, rows, spec.task)
        return {**preview, **counts} if counts is not None else preview

    def _preview_labelled(
        self, file_id: str, spec: TrainingSpec, num_rows: int, known: Mapping[str, "KnownFile"]
    ) -> PreviewObject:
        """Show the first rows of a file for a classifier; the counts are those of its check."""
        from training.data.labelled.preview import preview_labelled_rows

        shown = preview_labelled_rows(spec, num_rows, known)
        check = self._files.get(file_id).get("check")
        is_counted = check is not None and check.get("task") == spec.task
        rows: list[RowObject] = [
            {
                "number": number,
                "line": row.line,
                "is_part": False,
                "tokens": [],
                "texts": list(row.texts),
                "labels": list(row.labels),
            }
            for number, row in enumerate(shown.rows, 1)
        ]
        preview = _make_preview(shown.format, 0, shown.ignored_keys, rows, spec.task)
        if check is None or not is_counted:
            return preview
        labels = check.get("label_counts", {})
        return {**preview, "num_rows": check["num_rows"], "label_counts": labels}

    def _count_rows(
        self, file_id: str, file: Path, spec: TrainingSpec, model_id: str | None
    ) -> RowCountsObject | FileCheck | None:
        """Return the counts of a file's rows, by reading them if that is quick.

        Otherwise returns the counts of the file's check if that used `model_id`, and None if not;
        `model_id` is None if settings were given. Raises as `prepare_rows` does.
        """
        if are_quick([file]):
            with suppress(SlowRowsError):
                return count_rows(prepare_rows(self._layout, spec), spec.task)
        checked = self._files.get(file_id).get("check")
        return checked if checked and checked["model"] == model_id else None

    def estimate(
        self, request: FineTuneRequest, nodes: Sequence[Mapping[str, float]]
    ) -> EstimateObject:
        """Validate a request as `create` does, and estimate what its job will take.

        Rows of large files are not read. Raises as `create` does.
        """
        self.check_counts()
        model = self._models.resolve(request.model)
        require_lineage(model)
        with model.lock_shared(), refuse_full_disk():
            spec, size, _ = self._check(model, request, nodes)
            return self._estimator.estimate(model, request, spec, size, nodes)

    def _check(
        self, model: StoredModel, request: FineTuneRequest, nodes: Sequence[Mapping[str, float]]
    ) -> tuple[TrainingSpec, ModelSize | None, list[Path]]:
        """Check everything but the rows; return the spec, the size of its model, and its files."""
        paths = {file_id: self._files.find_content(file_id) for file_id in request.list_files()}
        training_file = str(paths[request.training_file])
        defaults = build_default_spec(self._models, model, training_file, request.task)
        spec = request.resolve_settings(defaults, paths)
        return spec, self.check_spec(spec, model, nodes), list(paths.values())

    def check_spec(
        self,
        spec: TrainingSpec,
        model: StoredModel,
        nodes: Sequence[Mapping[str, float]],
        more_bytes: int = 0,
    ) -> ModelSize | None:
        """Check the settings of a job; return the size of its model, None if it is unknown.

        `more_bytes` are those that the job stores besides its model. Raises `ServingError` or
        `ApiError` for a job that cannot work.
        """
        import_transformers()
        from training.pipeline.architecture import check_architecture
        from training.preflight.adapter_check import plan_learned_tensors
        from training.preflight.preflight import check_base_model, count_parameters

        _check_loop(spec, self._allowed_loops)
        _check_served(spec)
        check_adapter_job(spec)
        if find_task(spec.task).generates:
            _check_generates(model)
        with invalid_input("model", only=SettingError):
            check_base_model(spec.base_model, find_task(spec.task))
            num_parameters = count_parameters(spec.base_model)
        with invalid_input("training", only=SettingError):
            check_architecture(spec)
            planned = plan_learned_tensors(spec)  # refuses an adapter that does not fit
        check_adapter_layers(spec, planned)
        check_job_size(spec, self._limits)
        num_learned = planned and planned.num_parameters
        new_bytes = self._sizes.estimate_published(spec, num_learned)
        self._check_space(new_bytes + more_bytes)
        with invalid_input(only=ResourceError):
            check_resources(spec, nodes, self._reserved_cpus, self._reserved_gpus)
        if num_parameters is None:
            return None
        return ModelSize(num_parameters, num_learned or num_parameters)

    def _check_space(self, new_bytes: int) -> None:
        """Raise `ApiError` 507 without room for new bytes and for what extensions have to copy."""
        stored = self._sizes.measure()
        for run, record in self._runs.scan_unfinished().runs:
            if record.extended_from is not None and not run.has_data:
                copied = self._sizes.measure_checkpoints(record.id)
                stored += max(0, self._sizes.measure_checkpoints(record.extended_from) - copied)
        check_model_space(stored, self._limits, new_bytes)

    def _create_from(
        self, model: StoredModel, request: FineTuneRequest, nodes: Sequence[Mapping[str, float]]
    ) -> RunFolder:
        spec, _, paths = self._check(model, request, nodes)
        prepared = None
        if are_quick(paths):
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
                from training.data.run_tables import link_data

                link_data(prepared, run.data)
                report_data(run, prepared.summary)
                run.events.add("Queued", code="queued")
            run.create(spec, record)
            return self.add(building, record.id)


def _make_preview(
    format_name: str,
    max_length: int,
    ignored_keys: Mapping[str, int],
    rows: list[RowObject],
    task: str,
) -> PreviewObject:
    """Return a preview whose rows have not been counted."""
    return {
        "object": "file.preview",
        "num_rows": None,
        "num_tokens": None,
        "num_learned_tokens": None,
        "num_truncated_rows": None,
        "num_dropped_rows": None,
        "num_split_rows": None,
        "format": format_name,
        "max_length": max_length,
        "ignored_keys": dict(ignored_keys),
        "rows": rows,
        "task": task,
    }


def _check_loop(spec: TrainingSpec, allowed_loops: Sequence[str]) -> None:
    """Raise `InvalidInputError` for a loop that the operator does not allow."""
    if spec.loop is not None and spec.loop not in allowed_loops:
        allowed = ", ".join(map(repr, allowed_loops)) or "none is, until the operator sets them"
        raise InvalidInputError(
            f"training.loop is {spec.loop!r}, which is not allowed here; allowed_loops: {allowed}",
            param="training",
            code="loop_not_allowed",
        )


def _check_served(spec: TrainingSpec) -> None:
    """Raise `InvalidInputError` for a task whose models this application cannot serve."""
    if spec.task not in (offered := list_offered_tasks()):
        raise InvalidInputError(
            f"training.task is {spec.task!r}, whose models are not served: expected "
            f"{' or '.join(map(repr, offered))}. Train it with 'python -m training'",
            param="training",
        )


def _check_generates(model: StoredModel) -> None:
    """Raise `InvalidInputError` for a language model's job whose model is of another kind."""
    if model.served_task.answers != "text":
        raise InvalidInputError(
            f"{model.id!r} has the task {model.task!r}, expected a language model: choose another "
            "model, or set the task in 'training'",
            param="model",
        )
