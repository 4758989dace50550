"""Fine-tuning jobs in OpenAI's shapes: what a client asks for, and a run as it is shown."""

import time
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from apps.errors import ApiError
from apps.runs import is_resumable
from training.runs import RunFolder, RunRecord
from training.spec import TrainingSpec

# Paths, accounts and switches of the machine: the operator's to set, never a client's.
SERVER_SETTINGS = frozenset(
    {
        "base_model",
        "train_file",
        "train_dataset",
        "validation_file",
        "validation_dataset",
        "deepspeed",
        "trackers",
    }
)

_HYPERPARAMETER_PLACES = ("method", "hyperparameters")
_OUR_NAMES = {
    "n_epochs": "epochs",
    "batch_size": "micro_batch_size",
    "learning_rate_multiplier": "learning_rate",
}

Auto = Literal["auto"]
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Hyperparameters(_Model):
    """OpenAI's names; 'auto' leaves the default of the base model."""

    n_epochs: Auto | int = Field("auto", description="Passes over the rows.")
    batch_size: Auto | int = Field("auto", description="Rows per optimizer step, all workers.")
    learning_rate_multiplier: Auto | float = Field(
        "auto", description="Factor on the base model's default learning rate."
    )


class SupervisedMethod(_Model):
    """Settings of supervised fine-tuning."""

    hyperparameters: Hyperparameters = Field(default_factory=Hyperparameters)


class Method(_Model):
    """How to fine-tune; only supervised fine-tuning exists."""

    type: Literal["supervised"] = "supervised"
    supervised: SupervisedMethod = Field(default_factory=SupervisedMethod)


class FineTuneRequest(_Model):
    """Body of `POST /v1/fine_tuning/jobs`."""

    model: str = Field(min_length=1, description="Id or alias of the model to start from.")
    training_file: str = Field(min_length=1, description="Id of an uploaded file.")
    suffix: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$",
        description="Becomes part of the new model's id.",
    )
    seed: int | None = Field(None, description="Seed of the order of rows.")
    metadata: dict[MetadataKey, MetadataValue] | None = Field(
        None, max_length=16, description="Kept with the job."
    )
    hyperparameters: Hyperparameters | None = Field(None, description="OpenAI's older place.")
    method: Method | None = Field(None, description="OpenAI's newer place for hyperparameters.")
    validation_file: str | None = Field(
        None, min_length=1, description="Id of an uploaded file of rows to evaluate on."
    )
    integrations: None = Field(
        None, description="Where figures go besides is the operator's to set ('trackers')."
    )
    priority: int = Field(0, ge=-100, le=100, description="Jobs with a higher one go first.")
    training: dict[str, Any] = Field(
        default_factory=dict, description="Any setting of our own training spec; these win."
    )

    def list_files(self) -> list[str]:
        """The ids of the files that the job reads, the training file first."""
        return [self.training_file] + ([self.validation_file] if self.validation_file else [])

    def resolve_settings(
        self, defaults: TrainingSpec, validation_path: str | None = None
    ) -> TrainingSpec:
        """Lay what was asked for over a base model's defaults.

        Raises `ApiError` or `pydantic.ValidationError` for a setting that cannot be.
        """
        if taken := SERVER_SETTINGS & set(self.training):
            raise ApiError(
                400,
                f"{sorted(taken)} cannot be set in 'training'; the model and the "
                "file have fields of their own, the rest is the operator's",
                param="training",
            )
        settings = {**defaults.model_dump(), "validation_file": validation_path}
        if self.seed is not None:
            settings["seed"] = self.seed
        settings.update(self.training)
        TrainingSpec.model_validate(settings)  # before anything is worked out from them
        return TrainingSpec.model_validate(
            {**settings, **self._translate_hyperparameters(settings)}
        )

    def find_hyperparameters(self) -> Hyperparameters:
        """What was asked for in OpenAI's names, in the newer place or the older."""
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
    """Rows per micro batch: train batch = micro batch × accumulation × workers."""
    shares: int = settings["num_workers"] * settings["gradient_accumulation_steps"]
    if batch_size < 1 or batch_size % shares:
        raise ApiError(
            400,
            f"batch_size is {batch_size}, expected a positive multiple of {shares} "
            f"({settings['num_workers']} workers × {settings['gradient_accumulation_steps']} "
            "accumulation steps)",
            param="batch_size",
        )
    return batch_size // shares


def lay_over(asked: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Lay changes over the body of a request for a fine-tune; settings are changed one by one.

    What is changed by OpenAI's name for it is no longer what it was by ours. Raises
    `pydantic.ValidationError` for changes that cannot be.
    """
    before = FineTuneRequest.model_validate(asked)
    rest = {name: value for name, value in asked.items() if name not in _HYPERPARAMETER_PLACES}
    after = FineTuneRequest.model_validate({**rest, **changes})
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


def describe_job(run: RunFolder, record: RunRecord | None = None) -> dict[str, Any]:
    """Show a run as OpenAI's `fine_tuning.job`, with our `progress` beside it."""
    record = record or run.read_record()
    spec = run.read_spec()
    asked = FineTuneRequest.model_validate(record.request)
    last = run.read_last_metrics()
    hyperparameters = {
        "n_epochs": spec.epochs,
        "batch_size": _count_batch(spec) or "auto",
        "learning_rate_multiplier": asked.find_hyperparameters().learning_rate_multiplier,
    }
    is_running = record.status == "running"
    return {
        "id": record.id,
        "object": "fine_tuning.job",
        "created_at": record.created_at,
        "started_at": record.started_at,
        "finished_at": record.finished_at,
        "estimated_finish": int(time.time() + last["remaining_s"]) if last and is_running else None,
        "status": record.status,
        "model": record.request["model"],
        "fine_tuned_model": record.model_id,
        "organization_id": "tuneserve",
        "training_file": asked.training_file,
        "validation_file": asked.validation_file,
        "result_files": [record.result_file] if record.result_file else [],
        "seed": spec.seed,
        "trained_tokens": record.trained_tokens,
        "hyperparameters": hyperparameters,
        "method": {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}},
        "error": record.error.model_dump() if record.error else None,
        "user_provided_suffix": asked.suffix,
        "metadata": asked.metadata,
        "integrations": None,
        "training": spec.model_dump(exclude=set(SERVER_SETTINGS)),
        "progress": _describe_progress(last),
        "priority": record.priority,
        "waiting_for": record.waiting_for,
        "resumable": is_resumable(run, record),
    }


def describe_event(event: dict[str, Any]) -> dict[str, Any]:
    """Show an event as OpenAI's `fine_tuning.job.event`."""
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
