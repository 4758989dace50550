"""Requests for fine-tuning jobs in OpenAI's schema."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from apps.errors import ApiError, InvalidInputError, invalid_input
from serving.openai.protocol import (
    MAX_INTEGER,
    MAX_MODEL_CHARACTERS,
    Metadata,
    Neutral,
    RequestPart,
    limit_items,
    parse_part,
)
from serving.openai.validation_messages import translate_validation_error
from storage.layout import MAX_ID_CHARACTERS
from training.settings.continued_adapter import continue_settings
from training.settings.preference_settings import MAX_BETA
from training.settings.row_sources import MAX_TRAIN_FILES
from training.settings.task_settings import PREFERENCE_TASK
from training.spec import TrainingSpec
from training.task import list_tasks

# Paths, accounts and settings of the machine, which only the operator may set.
SERVER_SETTINGS = frozenset(
    {
        "base_model",
        "base_adapter",
        "train_file",
        "train_files",
        "train_dataset",
        "validation_file",
        "validation_dataset",
        "data_engine",
        "data_memory_mb",
        "deepspeed",
        "trackers",
    }
)

MAX_SETTINGS = 64

HYPERPARAMETER_FIELDS = ("method", "hyperparameters")
"""Fields of a request with hyperparameters by OpenAI's names: the newer one, and the older one."""

_OUR_NAMES = {
    "n_epochs": "epochs",
    "batch_size": "micro_batch_size",
    "learning_rate_multiplier": "learning_rate",
}
_BETA = "beta"  # the hyperparameter that is one of the settings of the task

Auto = Literal["auto"]
Count = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Multiplier = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(gt=0, le=MAX_BETA, allow_inf_nan=False)]


class Hyperparameters(RequestPart):
    """Hyperparameters by OpenAI's names; 'auto' keeps the default of the base model."""

    n_epochs: Auto | Count = Field("auto", description="Number of passes over the rows.")
    batch_size: Auto | Count = Field("auto", description="Rows per optimizer step, all workers.")
    learning_rate_multiplier: Auto | Multiplier = Field(
        "auto", description="Factor on the base model's default learning rate."
    )


class SupervisedMethod(RequestPart):
    """Settings of supervised fine-tuning."""

    hyperparameters: Hyperparameters = Field(default_factory=Hyperparameters)


class DpoHyperparameters(Hyperparameters):
    """Hyperparameters of preference tuning by OpenAI's names."""

    beta: Auto | Beta = Field(
        "auto", description="How closely the model stays to the model it starts from."
    )


class DpoMethod(RequestPart):
    """Settings of preference tuning."""

    hyperparameters: DpoHyperparameters = Field(default_factory=DpoHyperparameters)


class Method(RequestPart):
    """Method of fine-tuning: 'dpo' learns from pairs of answers, and trains task 'preference'.

    Other losses than DPO are set by `training.task_settings.loss`.
    """

    type: Literal["supervised", "dpo"] = "supervised"
    supervised: SupervisedMethod | None = None
    dpo: DpoMethod | None = None

    @model_validator(mode="after")
    def _check_type(self) -> Self:
        other = "dpo" if self.type == "supervised" else "supervised"
        if getattr(self, other) is not None:
            raise ValueError(f"type is {self.type!r}, and {other!r} has settings: remove one")
        return self

    def find_hyperparameters(self) -> Hyperparameters:
        """Return the hyperparameters of the method's type."""
        if self.type == "dpo":
            return (self.dpo or DpoMethod()).hyperparameters
        return (self.supervised or SupervisedMethod()).hyperparameters


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
    hyperparameters: Hyperparameters | None = Field(None, description="OpenAI's older field.")
    method: Method | None = Field(None, description="OpenAI's newer field for hyperparameters.")
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
    priority: int = Field(
        0, ge=-100, le=100, description="Jobs with a higher priority start first."
    )
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

    @model_validator(mode="after")
    def _check_method(self) -> Self:
        if self.method is None or (task := self.training.get("task")) is None:
            return self
        if (task == PREFERENCE_TASK) != (self.method.type == "dpo"):
            raise ValueError(
                f"method.type is {self.method.type!r}, and training.task is {task!r}: method "
                f"'dpo' trains task {PREFERENCE_TASK!r}, 'supervised' all others; remove one"
            )
        return self

    @property
    def task(self) -> str | None:
        """The requested task; None for an unknown one too, which `resolve_settings` refuses."""
        if self.method is not None and self.method.type == "dpo":
            return PREFERENCE_TASK
        name = self.training.get("task")
        return name if name in list_tasks() else None

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
        if self.training.get("loop") is not None:  # the base model's defaults are for our own loop
            if defaults.base_adapter is not None:
                raise InvalidInputError(
                    f"training.loop is set, and model {Path(defaults.base_adapter).name!r} is an "
                    "adapter, which a loop does not load: merge it ('tuneserve models merge') and "
                    "start from the result",
                    param="model",
                    code="model_is_adapter",
                )
            kept = defaults.model_dump(include={"base_model", "train_file", "task"})
            defaults = TrainingSpec.model_validate(kept)
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
        if self.training.get("strategy") == "pipeline":
            del settings["zero_stage"]  # that of another strategy
        settings.update(self.training)
        settings["adapter"] = _resolve_adapter(settings.get("adapter"), defaults)
        with invalid_input("training"):
            spec = TrainingSpec.model_validate(settings)
            return TrainingSpec.model_validate(
                {**settings, **self._translate_hyperparameters(spec)}
            )

    def find_hyperparameters(self) -> Hyperparameters:
        """Return the requested hyperparameters by OpenAI's names, from the newer or older field."""
        if self.method is not None:
            return self.method.find_hyperparameters()
        return self.hyperparameters or Hyperparameters()

    def _translate_hyperparameters(self, spec: TrainingSpec) -> dict[str, Any]:
        asked = self.find_hyperparameters()
        changes: dict[str, Any] = {}
        if isinstance(asked, DpoHyperparameters) and asked.beta != "auto":  # `training` wins
            changes["task_settings"] = {_BETA: asked.beta, **spec.task_settings}
        if asked.n_epochs != "auto" and "epochs" not in self.training:
            changes["epochs"] = asked.n_epochs
        if asked.learning_rate_multiplier != "auto" and "learning_rate" not in self.training:
            changes["learning_rate"] = spec.learning_rate * asked.learning_rate_multiplier
        if asked.batch_size != "auto" and "micro_batch_size" not in self.training:
            changes["micro_batch_size"] = _divide_batch(asked.batch_size, spec)
        return changes


def _resolve_adapter(asked: Any, defaults: TrainingSpec) -> Any:
    """Return the requested settings of an adapter, completed by those of one that is continued.

    Raises `InvalidInputError` for a job from an adapter that would not continue it.
    """
    if defaults.base_adapter is None or defaults.adapter is None:
        return {"export": "merged", **asked} if isinstance(asked, Mapping) else asked
    name = Path(defaults.base_adapter).name
    if asked is None:
        raise InvalidInputError(
            f"training.adapter is null, and model {name!r} is an adapter, which a job continues: "
            "leave adapter out, or merge the adapter ('tuneserve models merge') and start from the "
            "result",
            param="training",
            code="model_is_adapter",
        )
    if not isinstance(asked, Mapping):
        return asked
    with invalid_input("training", only=ValueError):
        given = {"export": defaults.adapter.export, **asked}
        return continue_settings(Path(defaults.base_adapter), given)


def _divide_batch(batch_size: int, spec: TrainingSpec) -> int:
    """Return the rows per micro batch: train batch = micro batch × accumulation × workers.

    In place of workers, a pipeline has replicas.
    """
    shares = spec.num_replicas * spec.gradient_accumulation_steps
    if batch_size < 1 or batch_size % shares:
        raise InvalidInputError(
            f"batch_size is {batch_size}, expected a positive multiple of {shares} "
            f"({spec.num_replicas} {'workers' if spec.num_stages == 1 else 'replicas'} × "
            f"{spec.gradient_accumulation_steps} accumulation steps)",
            param="batch_size",
        )
    return batch_size // shares


def parse_fine_tune(body: Any) -> FineTuneRequest:
    """Validate the body of a request for a fine-tuning job; raises `InvalidRequestError`."""
    return parse_part(FineTuneRequest, body)


def merge_changes(asked: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
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
    rest = {name: value for name, value in asked.items() if name not in HYPERPARAMETER_FIELDS}
    if "training_file" in changes and "training_files" not in changes:
        rest.pop("training_files", None)  # the file replaces the mix
    after = parse_part(FineTuneRequest, {**rest, **changes})
    task = after.training.get("task", PREFERENCE_TASK)
    if before.method is not None and before.method.type == "dpo" and task != PREFERENCE_TASK:
        kept = before.find_hyperparameters().model_dump(exclude={_BETA})
        same = Hyperparameters.model_validate(kept)
        before = before.model_copy(update={"method": None, "hyperparameters": same})
    named = after.find_hyperparameters().model_dump(exclude_unset=True)
    replaced = {_OUR_NAMES.get(name) for name in named} | ({"seed"} & changes.keys())
    training = {name: value for name, value in before.training.items() if name not in replaced}
    if _BETA in named and isinstance(own := training.get("task_settings"), Mapping):
        training["task_settings"] = {name: own[name] for name in own if name != _BETA}
    if "training" in changes:
        training |= after.training
    return {
        **rest,
        **{name: value for name, value in changes.items() if name not in HYPERPARAMETER_FIELDS},
        **_join_hyperparameters(before, after, named),
        "training": training,
    }


def _join_hyperparameters(
    before: FineTuneRequest, after: FineTuneRequest, named: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the field of a request with the hyperparameters of another one, and those changed."""
    joined = {**before.find_hyperparameters().model_dump(), **named}
    method = after.method or before.method
    if method is not None and method.type == "dpo":
        return {"method": {"type": "dpo", "dpo": {"hyperparameters": joined}}}
    known = Hyperparameters.model_fields
    return {"hyperparameters": {name: joined[name] for name in joined if name in known}}
