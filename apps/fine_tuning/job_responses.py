"""Fine-tuning jobs, their events and faults, as the API shows them in OpenAI's schema."""

import time
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from pydantic import ValidationError

from apps.file_store import find_filename
from apps.fine_tuning.index.run_index import UnreadableRun, describe_fault
from apps.fine_tuning.index.run_lookup import is_resumable
from apps.fine_tuning.job_requests import (
    HYPERPARAMETER_FIELDS,
    SERVER_SETTINGS,
    Auto,
    FineTuneRequest,
)
from storage.durable import DamagedFileError
from storage.layout import read_creation_time
from training.run.folder import RunFolder
from training.run.run_events import RunEvent
from training.run.run_record import RunRecord, RunStatus
from training.settings.preference_settings import PreferenceSettings
from training.settings.task_settings import PREFERENCE_TASK
from training.spec import TrainingSpec

UNREADABLE_STATUS: Literal["unreadable"] = "unreadable"
"""Status of a job whose record this version cannot read."""


class JobErrorObject(TypedDict):
    """Why a job failed, or cannot be read."""

    code: str
    message: str
    param: str | None


class HyperparametersObject(TypedDict):
    """The hyperparameters of a job by OpenAI's names."""

    n_epochs: Auto | int
    batch_size: Auto | int
    learning_rate_multiplier: Auto | float


class DpoHyperparametersObject(HyperparametersObject):
    """The hyperparameters of preference tuning by OpenAI's names."""

    beta: float


class SupervisedObject(TypedDict):
    """The settings of supervised fine-tuning."""

    hyperparameters: HyperparametersObject


class DpoObject(TypedDict):
    """The settings of preference tuning."""

    hyperparameters: DpoHyperparametersObject


class SupervisedMethodObject(TypedDict):
    """Supervised fine-tuning as the method of a job."""

    type: Literal["supervised"]
    supervised: SupervisedObject


class DpoMethodObject(TypedDict):
    """Preference tuning as the method of a job, by DPO or another loss."""

    type: Literal["dpo"]
    dpo: DpoObject


class SettingsObject(TypedDict):
    """The settings of a job: OpenAI's, and all of ours in `training`."""

    seed: int
    hyperparameters: HyperparametersObject
    method: SupervisedMethodObject | DpoMethodObject
    training: Mapping[str, Any]


class ProgressObject(TypedDict):
    """The figures of the newest step; None for what a loop of the operator's has not reported."""

    step: float
    num_steps: float | None
    epoch: float | None
    loss: float | None
    tokens_per_s: float | None
    elapsed_s: float
    remaining_s: float | None


class JobObject(SettingsObject):
    """A job as OpenAI's `fine_tuning.job`, with additional fields of ours."""

    id: str
    object: Literal["fine_tuning.job"]
    created_at: int
    started_at: int | None
    finished_at: int | None
    estimated_finish: int | None
    status: RunStatus | Literal["unreadable"]
    model: str
    fine_tuned_model: str | None
    organization_id: str
    training_file: str
    training_filename: str | None
    training_files: list[dict[str, str | float]] | None
    validation_file: str | None
    result_files: list[str]
    trained_tokens: int | None
    error: JobErrorObject | None
    user_provided_suffix: str | None
    metadata: dict[str, str] | None
    integrations: None
    progress: ProgressObject | None
    priority: int
    waiting_for: str | None
    resumable: bool
    extended_from: str | None


class EventObject(RunEvent):
    """An event as OpenAI's `fine_tuning.job.event`."""

    object: Literal["fine_tuning.job.event"]
    type: Literal["message", "metrics"]


_NO_HYPERPARAMETERS: HyperparametersObject = {
    "n_epochs": "auto",
    "batch_size": "auto",
    "learning_rate_multiplier": "auto",
}
_NO_SETTINGS: SettingsObject = {
    "seed": 0,
    "hyperparameters": _NO_HYPERPARAMETERS,
    "method": {"type": "supervised", "supervised": {"hyperparameters": _NO_HYPERPARAMETERS}},
    "training": {},
}


def describe_job(run: RunFolder) -> JobObject:
    """Describe a run as OpenAI's `fine_tuning.job`, with our additional field `progress`.

    If this version cannot use the spec, the settings are empty and `error` contains the reason.
    Raises `FileNotFoundError` and `DamagedFileError` as `RunFolder.read_record` does.
    """
    record = run.read_record()
    last = run.metrics.read_last()
    error = _describe_error(record)
    settings, filename = _NO_SETTINGS, record.training_filename
    try:
        spec = run.read_spec()
        settings = _describe_settings(spec, record.request)
        filename = filename or find_filename(spec.train_file)
    except (DamagedFileError, FileNotFoundError) as exc:
        if not run.record_file.exists():  # deleted just now
            raise
        message = f"the settings of this job cannot be read: {describe_fault(exc)}"
        error = error or {"code": "settings_unreadable", "message": message, "param": None}
    return {
        "id": record.id,
        "object": "fine_tuning.job",
        "created_at": record.created_at,
        "started_at": record.started_at,
        "finished_at": record.finished_at,
        "estimated_finish": _estimate_finish(record, last),
        "status": record.status,
        "model": record.request.get("model") or "",
        "fine_tuned_model": record.model_id,
        "organization_id": "tuneserve",
        "training_file": record.request.get("training_file") or "",
        "training_filename": filename,
        "training_files": record.request.get("training_files"),
        "validation_file": record.request.get("validation_file"),
        "result_files": [record.result_file] if record.result_file else [],
        "trained_tokens": _find_trained_tokens(record, last),
        **settings,
        "error": error,
        "user_provided_suffix": record.request.get("suffix"),
        "metadata": record.request.get("metadata"),
        "integrations": None,
        "progress": _describe_progress(last, record),
        "priority": record.priority,
        "waiting_for": record.waiting_for,
        "resumable": is_resumable(run, record),
        "extended_from": record.extended_from,
    }


def describe_unreadable_job(unreadable: UnreadableRun) -> JobObject:
    """Describe a run whose record cannot be read, so that the list still contains it."""
    run_id = unreadable.run.path.name
    return {
        "id": run_id,
        "object": "fine_tuning.job",
        "created_at": read_creation_time(run_id) or 0,
        "started_at": None,
        "finished_at": None,
        "estimated_finish": None,
        "status": UNREADABLE_STATUS,
        "model": "",
        "fine_tuned_model": None,
        "organization_id": "tuneserve",
        "training_file": "",
        "training_filename": None,
        "training_files": None,
        "validation_file": None,
        "result_files": [],
        "trained_tokens": None,
        **_NO_SETTINGS,
        "error": {"code": "job_unreadable", "message": unreadable.reason, "param": None},
        "user_provided_suffix": None,
        "metadata": None,
        "integrations": None,
        "progress": None,
        "priority": 0,
        "waiting_for": None,
        "resumable": False,
        "extended_from": None,
    }


def describe_event(event: RunEvent) -> EventObject:
    """Describe an event as OpenAI's `fine_tuning.job.event`."""
    kind: Literal["message", "metrics"] = "metrics" if "loss" in event["data"] else "message"
    return {"object": "fine_tuning.job.event", "type": kind, **event}


def _describe_error(record: RunRecord) -> JobErrorObject | None:
    if (error := record.error) is None:
        return None
    return {"code": error.code, "message": error.message, "param": error.param}


def _estimate_finish(record: RunRecord, last: dict[str, float] | None) -> int | None:
    """Estimate when a run ends, in Unix seconds, from a step taken since it last resumed."""
    if last is None or record.status != "running" or record.computing_since is None:
        return None
    # Workers need seconds to start; metrics of release 0.1 have no time.
    measured_at = last.get("created_at", 0)
    if measured_at <= record.computing_since or "remaining_s" not in last:
        return None
    return int(max(time.time(), measured_at + last["remaining_s"]))


def _find_trained_tokens(record: RunRecord, last: dict[str, float] | None) -> int | None:
    """Return the tokens that a run which has ended was trained on; None before its end."""
    tokens = last.get("trained_tokens") if last else None
    return int(tokens) if tokens is not None and record.is_final else None


def _describe_settings(spec: TrainingSpec, request: Mapping[str, Any]) -> SettingsObject:
    hyperparameters: HyperparametersObject = {
        "n_epochs": spec.epochs,
        "batch_size": _count_batch(spec) or "auto",
        "learning_rate_multiplier": _find_multiplier(request),
    }
    return {
        "seed": spec.seed,
        "hyperparameters": hyperparameters,
        "method": _describe_method(spec, hyperparameters),
        "training": spec.model_dump(exclude=set(SERVER_SETTINGS)),
    }


def _describe_method(
    spec: TrainingSpec, hyperparameters: HyperparametersObject
) -> SupervisedMethodObject | DpoMethodObject:
    if spec.task != PREFERENCE_TASK:
        return {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}
    beta = PreferenceSettings.model_validate(spec.task_settings).beta
    return {"type": "dpo", "dpo": {"hyperparameters": {**hyperparameters, "beta": beta}}}


def _find_multiplier(request: Mapping[str, Any]) -> Auto | float:
    """Find the learning rate multiplier in a stored request, which may be of another version."""
    try:
        known = {key: request[key] for key in HYPERPARAMETER_FIELDS if key in request}
        asked = FineTuneRequest.model_validate({"model": "-", "training_file": "-", **known})
    except ValidationError:
        return "auto"
    return asked.find_hyperparameters().learning_rate_multiplier


def _count_batch(spec: TrainingSpec) -> int | None:
    if spec.micro_batch_size is None:
        return None
    return spec.micro_batch_size * spec.gradient_accumulation_steps * spec.num_replicas


def _describe_progress(last: dict[str, float] | None, record: RunRecord) -> ProgressObject | None:
    """Describe the newest step; that of an extended run says nothing of the steps to come."""
    if last is None:
        return None
    if not record.is_final and any(last["step"] == end.step for end in record.extends):
        last = {name: last[name] for name in last if name not in ("num_steps", "remaining_s")}
    return {
        "step": last["step"],
        "num_steps": last.get("num_steps"),
        "epoch": last.get("epoch"),
        "loss": last.get("loss"),
        "tokens_per_s": last.get("tokens_per_s"),
        "elapsed_s": last["elapsed_s"],
        "remaining_s": last.get("remaining_s"),
    }
