"""Fine-tuning jobs in OpenAI's schema: clients' requests, and the representation of runs."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from apps.errors import ApiError, InvalidInputError, invalid_input
from apps.file_store import find_filename
from apps.fine_tuning.index.run_index import UnreadableRun, describe_fault
from apps.fine_tuning.index.run_lookup import is_resumable
from serving.openai.protocol import (
    MAX_INTEGER,
    MAX_MODEL_CHARACTERS,
    Metadata,
    Neutral,
    RequestPart,
    limit_items,
    parse_part,
)
from serving.openai.request_faults import translate_validation_error
from storage.durable import DamagedFileError
from storage.layout import MAX_ID_CHARACTERS, read_creation_time
from training.row_places import MAX_TRAIN_FILES
from training.run.folder import RunError, RunFolder, RunRecord
from training.spec import TrainingSpec

# Paths, accounts and settings of the machine, which only the operator may set.
SERVER_SETTINGS = frozenset(
    {
        "base_model",
        "train_file",
        "train_files",
        "train_dataset",
        "validation_file",
        "validation_dataset",
        "deepspeed",
        "trackers",
    }
)

MAX_SETTINGS = 64

_HYPERPARAMETER_PLACES = ("method", "hyperparameters")
_OUR_NAMES = {
    "n_epochs": "epochs",
    "batch_size": "micro_batch_size",
    "learning_rate_multiplier": "learning_rate",
}

UNREADABLE_STATUS = "unreadable"
"""Status of a job whose record this version cannot read."""

Auto = Literal["auto"]
Count = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Multiplier = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Hyperparameters(RequestPart):
    """Hyperparameters by OpenAI's names; 'auto' keeps the default of the base model."""

    n_epochs: Auto | Count = Field("auto", description="Passes over the rows.")
    batch_size: Auto | Count = Field("auto", description="Rows per optimizer step, all workers.")
    learning_rate_multiplier: Auto | Multiplier = Field(
        "auto", description="Factor on the base model's default learning rate."
    )


class SupervisedMethod(RequestPart):
    """Settings of supervised fine-tuning."""

    hyperparameters: Hyperparameters = Field(default_factory=Hyperparameters)


class Method(RequestPart):
    """Method of fine-tuning; only supervised fine-tuning is supported."""

    type: Literal["supervised"] = "supervised"
    supervised: SupervisedMethod = Field(default_factory=SupervisedMethod)


class TrainingFile(RequestPart):
    """One of several training files."""

    file: str = Field(
        min_length=1, max_length=MAX_ID_CHARACTERS, description="Id of an uploaded file."
    )
    weight: float = Field(
        1.0,
        strict=True,
        gt=0,
        le=10,
        allow_inf_nan=False,
        description="How often each of its rows is seen in an epoch; 0.5 is half of the rows.",
    )


class FineTuneRequest(RequestPart):
    """Body of `POST /v1/fine_tuning/jobs`."""

    model: str = Field(
        min_length=1,
        max_length=MAX_MODEL_CHARACTERS,
        description="Id or alias of the model to start from.",
    )
    training_file: str = Field(
        min_length=1, max_length=MAX_ID_CHARACTERS, description="Id of an uploaded file."
    )
    suffix: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$",
        description="Becomes part of the new model's id.",
    )
    seed: int | None = Field(None, ge=0, le=MAX_INTEGER, description="Seed of the order of rows.")
    metadata: Metadata | None = Field(None, description="Kept with the job.")
    hyperparameters: Hyperparameters | None = Field(None, description="OpenAI's older place.")
    method: Method | None = Field(None, description="OpenAI's newer place for hyperparameters.")
    validation_file: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_ID_CHARACTERS,
        description="Id of an uploaded file of rows to evaluate on.",
    )
    training_files: (
        Annotated[list[TrainingFile], limit_items(MAX_TRAIN_FILES, "training files")] | None
    ) = Field(
        None,
        min_length=1,
        max_length=MAX_TRAIN_FILES,
        description="Several files to learn from, mixed by weight. training_file is one of them.",
    )
    priority: int = Field(0, ge=-100, le=100, description="Jobs with a higher one go first.")
    training: Annotated[dict[str, Any], limit_items(MAX_SETTINGS, "settings")] = Field(
        default_factory=dict,
        max_length=MAX_SETTINGS,
        description="Any setting of our own training spec; these win.",
    )

    @classmethod
    def list_neutral_values(cls) -> Neutral:
        """List OpenAI's other job fields with the values accepted; the operator sets trackers."""
        return {"integrations": ([],)}

    def list_files(self) -> list[str]:
        """Return the ids of the files that the job reads."""
        mixed = [entry.file for entry in self.training_files or ()]
        others = [self.validation_file] if self.validation_file else []
        return list(dict.fromkeys([self.training_file, *mixed, *others]))

    @model_validator(mode="after")
    def _check_training_files(self) -> Self:
        files = [entry.file for entry in self.training_files or ()]
        if files and self.training_file not in files:
            raise ValueError(
                f"training_file is {self.training_file!r}, which is none of training_files: add it "
                "there with its weight, or name one of them"
            )
        if len(set(files)) < len(files):
            raise ValueError(
                "training_files names a file twice: name each once, with a weight for how often "
                "its rows are seen"
            )
        return self

    def resolve_settings(
        self, defaults: TrainingSpec, paths: Mapping[str, Path] | None = None
    ) -> TrainingSpec:
        """Merge the requested settings into a base model's defaults.

        `paths` maps the ids of the files to their paths, except for the training file, whose path
        is in the defaults. Raises `InvalidInputError` for an invalid setting.
        """
        if taken := SERVER_SETTINGS & set(self.training):
            raise InvalidInputError(
                f"{sorted(taken)} cannot be set in 'training'; the model and the "
                "file have fields of their own, the rest is the operator's",
                param="training",
            )
        paths = paths or {}
        settings = {**defaults.model_dump(), "validation_file": None}
        if self.validation_file is not None:
            settings["validation_file"] = str(paths[self.validation_file])
        if self.training_files:
            settings["train_file"] = None
            settings["train_files"] = [
                {"file": str(paths[entry.file]), "weight": entry.weight}
                for entry in self.training_files
            ]
        if self.seed is not None:
            settings["seed"] = self.seed
        settings.update(self.training)
        with invalid_input("training"):
            TrainingSpec.model_validate(settings)  # before other values are derived from them
            return TrainingSpec.model_validate(
                {**settings, **self._translate_hyperparameters(settings)}
            )

    def find_hyperparameters(self) -> Hyperparameters:
        """Return the requested hyperparameters by OpenAI's names, from the newer or older field."""
        if self.method is not None:
            return self.method.supervised.hyperparameters
        return self.hyperparameters or Hyperparameters()

    def _translate_hyperparameters(self, settings: dict[str, Any]) -> dict[str, Any]:
        asked = self.find_hyperparameters()
        changes: dict[str, Any] = {}
        if asked.n_epochs != "auto" and "epochs" not in self.training:
            changes["epochs"] = asked.n_epochs
        if asked.learning_rate_multiplier != "auto" and "learning_rate" not in self.training:
            changes["learning_rate"] = settings["learning_rate"] * asked.learning_rate_multiplier
        if asked.batch_size != "auto" and "micro_batch_size" not in self.training:
            changes["micro_batch_size"] = _divide_batch(asked.batch_size, settings)
        return changes


def _divide_batch(batch_size: int, settings: dict[str, Any]) -> int:
    """Return the rows per micro batch: train batch = micro batch × accumulation × workers."""
    shares: int = settings["num_workers"] * settings["gradient_accumulation_steps"]
    if batch_size < 1 or batch_size % shares:
        raise InvalidInputError(
            f"batch_size is {batch_size}, expected a positive multiple of {shares} "
            f"({settings['num_workers']} workers × {settings['gradient_accumulation_steps']} "
            "accumulation steps)",
            param="batch_size",
        )
    return batch_size // shares


def parse_fine_tune(body: Any) -> FineTuneRequest:
    """Validate the body of a request for a fine-tuning job; raises `InvalidRequestError`."""
    return parse_part(FineTuneRequest, body)


def lay_over(asked: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge changes into the body of a request for a job; `training` is merged key by key.

    A change that is null is ignored. A hyperparameter that is changed by OpenAI's name replaces a
    setting by our name. Fields of the stored body that only a newer version knows are dropped.
    Raises `InvalidRequestError` for invalid changes, and `ApiError` 409 for a stored body with
    values that only a newer version knows.
    """
    asked = {name: asked[name] for name in asked if name in FineTuneRequest.model_fields}
    changes = {name: value for name, value in changes.items() if value is not None}
    try:
        before = FineTuneRequest.model_validate(asked)
    except ValidationError as exc:
        reason = translate_validation_error(exc)
        message = f"the job cannot be cloned, since its request cannot be read: {reason}"
        raise ApiError(409, f"{message}; create a new job", code="settings_unreadable") from exc
    rest = {name: value for name, value in asked.items() if name not in _HYPERPARAMETER_PLACES}
    if "training_file" in changes and "training_files" not in changes:
        rest.pop("training_files", None)  # the file replaces the mix
    after = parse_part(FineTuneRequest, {**rest, **changes})
    named = after.find_hyperparameters().model_dump(exclude_unset=True)
    replaced = {_OUR_NAMES[name] for name in named} | ({"seed"} & changes.keys())
    training = {name: value for name, value in before.training.items() if name not in replaced}
    if "training" in changes:
        training |= after.training
    return {
        **rest,
        **{name: value for name, value in changes.items() if name not in _HYPERPARAMETER_PLACES},
        "hyperparameters": {**before.find_hyperparameters().model_dump(), **named},
        "training": training,
    }


def describe_job(run: RunFolder) -> dict[str, Any]:
    """Describe a run as OpenAI's `fine_tuning.job`, with our additional field `progress`.

    If this version cannot use the spec, the settings are empty and `error` contains the reason.
    Raises `FileNotFoundError` and `DamagedFileError` as `RunFolder.read_record` does.
    """
    record = run.read_record()
    last = run.read_last_metrics()
    error = record.error.model_dump(include=set(RunError.model_fields)) if record.error else None
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
        "progress": _describe_progress(last),
        "priority": record.priority,
        "waiting_for": record.waiting_for,
        "resumable": is_resumable(run, record),
    }


def _estimate_finish(record: RunRecord, last: dict[str, float] | None) -> int | None:
    """Estimate when a run ends, in Unix seconds, from a step taken since it last resumed."""
    if last is None or record.status != "running" or record.computing_since is None:
        return None
    # Workers need seconds to start; metrics of release 0.1 have no time.
    measured_at = last.get("created_at", 0)
    if measured_at <= record.computing_since:
        return None
    return int(max(time.time(), measured_at + last["remaining_s"]))


def _find_trained_tokens(record: RunRecord, last: dict[str, float] | None) -> int | None:
    """Return the tokens that a run which has ended was trained on; None before its end."""
    tokens = last.get("trained_tokens") if last else None
    return int(tokens) if tokens is not None and record.is_final else None


_NO_HYPERPARAMETERS = {
    "n_epochs": "auto",
    "batch_size": "auto",
    "learning_rate_multiplier": "auto",
}
_NO_SETTINGS: dict[str, Any] = {
    "seed": 0,
    "hyperparameters": _NO_HYPERPARAMETERS,
    "method": {"type": "supervised", "supervised": {"hyperparameters": _NO_HYPERPARAMETERS}},
    "training": {},
}


def describe_unreadable_job(unreadable: UnreadableRun) -> dict[str, Any]:
    """Describe a run whose record cannot be read, so that the list still contains it."""
    run_id = unreadable.run.path.name
    error = {"code": "job_unreadable", "message": unreadable.reason, "param": None}
    absent = (
        "started_at",
        "finished_at",
        "estimated_finish",
        "fine_tuned_model",
        "training_filename",
        "training_files",
        "validation_file",
        "trained_tokens",
        "user_provided_suffix",
        "metadata",
        "integrations",
        "progress",
        "waiting_for",
    )
    return {
        **dict.fromkeys(absent),
        "id": run_id,
        "object": "fine_tuning.job",
        "created_at": read_creation_time(run_id) or 0,
        "status": UNREADABLE_STATUS,
        "model": "",
        "organization_id": "tuneserve",
        "training_file": "",
        "result_files": [],
        **_NO_SETTINGS,
        "error": error,
        "priority": 0,
        "resumable": False,
    }


def _describe_settings(spec: TrainingSpec, request: dict[str, Any]) -> dict[str, Any]:
    hyperparameters = {
        "n_epochs": spec.epochs,
        "batch_size": _count_batch(spec) or "auto",
        "learning_rate_multiplier": _find_multiplier(request),
    }
    return {
        "seed": spec.seed,
        "hyperparameters": hyperparameters,
        "method": {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}},
        "training": spec.model_dump(exclude=set(SERVER_SETTINGS)),
    }


def _find_multiplier(request: dict[str, Any]) -> Auto | float:
    """Find the learning rate multiplier in a stored request, which may be of another version."""
    try:
        known = {key: request[key] for key in _HYPERPARAMETER_PLACES if key in request}
        asked = FineTuneRequest.model_validate({"model": "-", "training_file": "-", **known})
    except ValidationError:
        return "auto"
    return asked.find_hyperparameters().learning_rate_multiplier


def describe_event(event: dict[str, Any]) -> dict[str, Any]:
    """Describe an event as OpenAI's `fine_tuning.job.event`."""
    kind = "metrics" if "loss" in event["data"] else "message"
    return {"object": "fine_tuning.job.event", "type": kind, **event}


def _count_batch(spec: TrainingSpec) -> int | None:
    if spec.micro_batch_size is None:
        return None
    return spec.micro_batch_size * spec.gradient_accumulation_steps * spec.num_workers


def _describe_progress(last: dict[str, float] | None) -> dict[str, float] | None:
    if last is None:
        return None
    keys = ("step", "num_steps", "epoch", "loss", "tokens_per_s", "elapsed_s", "remaining_s")
    return {key: last[key] for key in keys}
