"""The spec of a fine-tune: one frozen, typed model, the same for YAML, HTTP and the web form."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from storage.local_paths import check_local_path, is_bucket_url
from training.criterion import Criterion
from training.deepspeed.user_config import adopt_settings
from training.settings.adapter_settings import AdapterSettings
from training.settings.combinations import check_settings_together
from training.settings.continued_adapter import continue_settings
from training.settings.fault_messages import describe_faults, show_value
from training.settings.loop_settings import LoopSettings
from training.settings.setting_groups import add_groups
from training.settings.source_settings import MAX_INTEGER, SourceSettings
from training.settings.spec_file import read_spec_file
from training.settings.step_settings import StepSettings
from training.settings.strategy_settings import StrategySettings
from training.settings.task_settings import check_task_settings

# Settings with paths on this machine, which are of no use to other readers of the settings.
_PLACES = {"base_model", "base_adapter", "train_file", "train_files", "validation_file"}


class SettingError(ValueError):
    """The settings do not match the model or the cluster."""


class TrainingSpec(LoopSettings, StrategySettings, StepSettings, SourceSettings):
    """Everything that decides what a fine-tune computes and which resources it may use.

    Unknown keys are refused. Raises `pydantic.ValidationError`, a `ValueError`, for a value out of
    its range; `describe_validation_error` turns it into a message.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, json_schema_extra=add_groups
    )

    adapter: AdapterSettings | None = Field(
        None,
        description="Learn an adapter of low rank, and keep all other weights as they are; "
        "default: all weights are learned.",
    )
    base_adapter: str | None = Field(
        None,
        min_length=1,
        description="Folder of an adapter of PEFT for 'base_model' that training continues; the "
        "settings of 'adapter' that it decides need not be set.",
    )
    quantization: Literal["none", "nf4", "int8"] = Field(
        "none",
        description="Bits of the base weights under an adapter, on GPUs: 4 ('nf4') or 8 ('int8'), "
        "by bitsandbytes.",
    )
    evaluate_every_steps: int | None = Field(
        None,
        ge=1,
        le=MAX_INTEGER,
        description="Optimizer steps between evaluations, besides those at the end of each epoch.",
    )
    early_stopping_patience: int | None = Field(
        None,
        ge=1,
        le=MAX_INTEGER,
        description="Evaluations without a better 'best_metric' after which training stops.",
    )
    save_every_steps: int | None = Field(
        None,
        ge=1,
        le=MAX_INTEGER,
        description="Optimizer steps between checkpoints, besides those at the end of each epoch.",
    )
    keep: Literal["last", "best"] = Field(
        "last",
        description="Which checkpoint becomes the model: the last, or the best by 'best_metric'.",
    )
    best_metric: str = Field(
        "loss",
        description="Figure of evaluations by which 'keep' and 'early_stopping_patience' compare: "
        "'loss', the validation loss, or a metric of the task.",
    )
    best_direction: Literal["auto", "lowest", "highest"] = Field(
        "auto",
        description="Which value of 'best_metric' is the best; 'auto': the lowest validation loss, "
        "the highest of a metric.",
    )
    keep_checkpoints: int = Field(
        2,
        ge=1,
        le=1000,
        description="Newest checkpoints kept on disk; the best one is kept besides.",
    )
    max_failures: int = Field(
        3, ge=0, le=100, description="Times that lost workers are replaced before the run fails."
    )
    trackers: tuple[Literal["mlflow", "wandb"], ...] = Field(
        (), description="Where to send metrics besides metrics.jsonl and TensorBoard."
    )

    @property
    def criterion(self) -> Criterion:
        """The figure by which checkpoints are compared."""
        metric = self.best_metric.removeprefix("eval_")  # as a loop may have reported it
        is_auto = self.best_direction == "auto"
        return Criterion(metric, metric == "loss" if is_auto else self.best_direction == "lowest")

    @property
    def has_rows(self) -> bool:
        """Whether there are rows to train on; only a loop may have none."""
        return bool(self.train_file or self.train_files or self.train_dataset)

    @property
    def has_validation(self) -> bool:
        """Whether there are rows to evaluate on."""
        return bool(self.validation_file or self.validation_dataset or self.validation_fraction)

    @model_validator(mode="before")
    @classmethod
    def _check_booleans(cls, values: Any) -> Any:
        """Refuse true in place of 1, and 'yes' in place of true, which pydantic would accept."""
        for name, value in values.items() if isinstance(values, dict) else ():
            field = cls.model_fields.get(name)
            if field is not None and isinstance(value, bool) != (field.annotation is bool):
                expected = "true or false" if field.annotation is bool else "no boolean"
                raise ValueError(f"{name} is {show_value(value)}, expected {expected}")
        return values

    @model_validator(mode="before")
    @classmethod
    def _adopt_deepspeed(cls, values: Any) -> Any:
        return (
            adopt_settings(values)
            if isinstance(values, dict) and values.get("deepspeed")
            else values
        )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        check_settings_together(self)
        if self.loop is None:
            check_task_settings(self)
        return self

    def describe(self) -> dict[str, Any]:
        """Return the settings as JSON values for other readers, without paths on this machine."""
        settings = self.model_dump(mode="json", exclude=_PLACES)
        for name in ("train_dataset", "validation_dataset"):
            if dataset := settings[name]:
                dataset["id"] = name_source(dataset["id"])
        settings["deepspeed"] = _drop_paths(settings["deepspeed"])
        return settings

    def pin_paths(self, folder: Path) -> "TrainingSpec":
        """Make paths absolute; relative paths are relative to the spec's `folder`."""
        changes: dict[str, Any] = {}
        for name in ("train_file", "validation_file"):
            if (path := getattr(self, name)) is not None:
                changes[name] = _pin_path(folder, path)
        files = tuple(
            entry.model_copy(update={"file": _pin_path(folder, entry.file)})
            for entry in self.train_files
        )
        if self.base_adapter is not None:
            changes["base_adapter"] = _pin_path(folder, self.base_adapter)
        base_model = folder / Path(self.base_model).expanduser()
        if base_model.is_dir():
            changes["base_model"] = str(base_model)
        if files:
            changes["train_files"] = files
        return self.model_copy(update=changes)


def _pin_path(folder: Path, path: str) -> str:
    return path if is_bucket_url(path) else str(folder / Path(path).expanduser())


def _drop_paths(config: Mapping[str, Any]) -> dict[str, Any]:
    """Remove keys that name files and folders from a DeepSpeed configuration, at any depth."""
    return {
        key: _drop_paths(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if not key.endswith(("_path", "_file", "_dir"))
    }


def name_source(source: str) -> str:
    """Return the name of a model or a data set without its folder; an id on the hub unchanged."""
    if is_bucket_url(source):  # the query may have credentials
        return Path(source.split("?")[0]).name
    path = Path(source)
    return path.name if path.is_absolute() or path.exists() else source


def load_spec(path: Path, changes: Mapping[str, Any] | None = None) -> TrainingSpec:
    """Read a spec from YAML or JSON; its paths are relative to its own folder.

    `changes` replace its settings. Those of an adapter to continue are read from its folder. Raises
    `ValueError` that names the file and every faulty key.
    """
    content = {**read_spec_file(path), **(changes or {})}
    folder = path.resolve().parent
    try:
        spec = TrainingSpec.model_validate(_continue_adapter(content, folder))
    except ValidationError as exc:
        raise ValueError(f"{path.name}: {describe_validation_error(exc)}") from exc
    except ValueError as exc:
        raise ValueError(f"{path.name}: {exc}") from exc
    return spec.pin_paths(folder)


def _continue_adapter(content: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Set the settings of an adapter to continue, where its files and other settings are valid."""
    named, given = content.get("base_adapter"), content.get("adapter") or {}
    if not isinstance(named, str) or not isinstance(given, Mapping):
        return content
    check_local_path("base_adapter", named)
    return {**content, "adapter": continue_settings(Path(_pin_path(folder, named)), given)}


def describe_validation_error(exc: ValidationError) -> str:
    """Describe a user's errors: each faulty key, the value found and what was expected."""
    known = ", ".join(TrainingSpec.model_fields) if exc.title == TrainingSpec.__name__ else ""
    return describe_faults(exc.errors(), known)
