"""The spec of a fine-tune: one frozen, typed model, the same for YAML, HTTP and the web form."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from templating.arguments import check_arguments
from training.criterion import Criterion
from training.deepspeed.user_config import adopt_settings
from training.settings.combinations import check_settings_together
from training.settings.fault_messages import describe_faults, show_value
from training.settings.row_sources import HubDataset, TrainFile, limit_train_files
from training.settings.spec_file import read_spec_file
from training.settings.task_settings import DEFAULT_TASK, check_task, check_task_settings

# Settings with paths on this machine, which are of no use to other readers of the settings.
_PLACES = {"base_model", "train_file", "train_files", "validation_file"}

DataFormat = Literal["auto", "chat", "prompt_completion", "alpaca", "sharegpt", "text"]
TextRows = Literal["line", "paragraph", "document"]


_MAX_INTEGER = 2**31 - 1
_MAX_COLUMNS = 64

_Decay = Annotated[float, Field(ge=0, lt=1)]


def _limit_columns(value: Any) -> Any:
    if isinstance(value, Mapping) and len(value) > _MAX_COLUMNS:
        raise ValueError(f"expected at most {_MAX_COLUMNS} columns, got {len(value)}")
    return value


class SettingError(ValueError):
    """The settings do not match the model or the cluster."""


class TrainingSpec(BaseModel):
    """Everything that decides what a fine-tune computes and which resources it may use.

    Unknown keys are refused. Raises `pydantic.ValidationError`, a `ValueError`, for a value out of
    its range; `describe_validation_error` turns it into a message.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    base_model: str = Field(
        min_length=1, description="Folder of a Hugging Face model, or a model id on the hub."
    )
    task: Annotated[str, AfterValidator(check_task)] = Field(
        DEFAULT_TASK, description="What is learned: the name of a task."
    )
    task_settings: dict[str, Any] = Field(
        default_factory=dict, description="Settings of the task, beside those of every task."
    )
    train_file: str | None = Field(
        None,
        min_length=1,
        description="File of rows to learn from: JSON, JSONL, CSV, Parquet, Arrow or plain text. "
        "A folder, or a pattern as in 'data/*.jsonl', stands for its files in the order of their "
        "names.",
    )
    train_files: Annotated[tuple[TrainFile, ...], BeforeValidator(limit_train_files)] = Field(
        (),
        description="Several files to learn from, mixed by weight, in place of train_file, as in "
        '[{"file": "a.jsonl", "weight": 2}, {"file": "b.jsonl"}].',
    )
    train_dataset: HubDataset | None = Field(
        None, description="Rows to learn from on the Hugging Face hub, in place of a file."
    )
    validation_file: str | None = Field(
        None,
        min_length=1,
        description="File, folder or pattern of rows to evaluate on, in the same format.",
    )
    validation_dataset: HubDataset | None = Field(
        None, description="Rows to evaluate on on the hub, in place of a file."
    )
    validation_fraction: float = Field(
        0.0, ge=0, le=0.5, description="Share of the rows held out to evaluate on, by 'seed'."
    )
    format: DataFormat = Field(
        "auto", description="Shape of a row; 'auto' recognises it by the keys of the first row."
    )
    columns: Annotated[dict[str, str], BeforeValidator(_limit_columns)] = Field(
        default_factory=dict,
        description="Where the rows' own names differ: our key to theirs, as in "
        '{"prompt": "question", "completion": "answer"}.',
    )
    text_rows: TextRows = Field(
        "line",
        description="What is one row of a plain text file (.txt): a 'line', a 'paragraph' (blank "
        "lines separate them), or the whole 'document'.",
    )
    max_length: int | None = Field(
        None,
        ge=8,
        le=_MAX_INTEGER,
        description="Tokens of one row at most; default: the model's context, within a micro "
        "batch.",
    )
    overlong: Literal["truncate", "drop", "refuse"] = Field(
        "truncate", description="What becomes of a row with more tokens than 'max_length'."
    )
    learned_turns: Literal["all", "last"] = Field(
        "all",
        description="Answers of a chat that are learned: 'all' but those of weight 0, or the "
        "'last' of these.",
    )
    reasoning: Literal["learn", "mask", "drop"] = Field(
        "learn",
        description="Reasoning before an answer, in 'reasoning_content' or between '<think>' "
        "and '</think>': 'learn' it, 'mask' it (seen but not learned), or 'drop' it.",
    )
    template_arguments: Annotated[
        dict[str, str | int | float | bool], BeforeValidator(check_arguments)
    ] = Field(
        default_factory=dict,
        description='Variables of the chat template, as in {"enable_thinking": false}; the '
        "fine-tuned model is served with them too.",
    )

    max_rows: int | None = Field(
        None,
        ge=1,
        le=_MAX_INTEGER,
        description="Rows read of each file or data set to learn from, from its beginning; rows "
        "beyond are not checked; default: all.",
    )

    epochs: int = Field(3, ge=1, le=1000, description="Passes over the rows.")
    max_steps: int | None = Field(
        None,
        ge=1,
        le=_MAX_INTEGER,
        description="Optimizer steps after which training ends, unless 'epochs' passes end before; "
        "the learning rate falls over these steps. Default: as many as the epochs have.",
    )
    learning_rate: float = Field(1e-4, gt=0, le=1, description="Peak learning rate of AdamW.")
    lr_schedule: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="How the learning rate falls after the warm-up; to 0 unless constant."
    )
    warmup_ratio: float = Field(
        0.05, ge=0, lt=1, description="Share of the steps in which the learning rate rises from 0."
    )
    warmup_steps: int | None = Field(
        None,
        ge=0,
        le=_MAX_INTEGER,
        description="Steps in which the learning rate rises from 0, in place of 'warmup_ratio', "
        "which is not used then.",
    )
    weight_decay: float = Field(
        0.01, ge=0, le=1, description="Decoupled weight decay; never on norms and biases."
    )
    adam_betas: tuple[_Decay, _Decay] = Field(
        (0.9, 0.95), description="Decay of AdamW's running means of the gradient and its square."
    )
    adam_epsilon: float = Field(
        1e-8, gt=0, description="Added to the root of AdamW's second moment."
    )
    max_grad_norm: float = Field(
        1.0, gt=0, description="Global norm at which gradients are clipped."
    )
    micro_batch_tokens: int = Field(
        1024,
        ge=8,
        le=_MAX_INTEGER,
        description="Padded tokens in one micro batch of one worker, at most.",
    )
    micro_batch_size: int | None = Field(
        None,
        ge=1,
        le=_MAX_INTEGER,
        description="Rows in one micro batch of one worker, at most; default: no limit, or that of "
        "the task.",
    )
    gradient_accumulation_steps: int = Field(
        1, ge=1, le=65536, description="Micro batches of one worker per optimizer step."
    )
    batch_layout: Literal["auto", "padded", "flattened"] = Field(
        "auto",
        description="Rows of a micro batch: 'padded' to the longest, or 'flattened' into one "
        "sequence without padding; 'auto' flattens where a variable-length kernel is present.",
    )
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        "auto",
        description="Arithmetic of the forward and backward pass; master weights are fp32. 'auto' "
        "takes bf16 on GPUs and on CPUs that compute in it, else fp32.",
    )
    export_dtype: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        "auto", description="Type of the model's weights as published; 'auto': 'precision'."
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the order of rows and of dropout.")

    strategy: Literal["zero", "ddp"] = Field(
        "zero",
        description="How the training is spread over the workers: 'zero' is DeepSpeed, which "
        "shards by 'zero_stage'; 'ddp' is PyTorch's DistributedDataParallel, in which every worker "
        "has the whole model.",
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        3,
        description="What DeepSpeed shards over the workers: 0 nothing, 1 the optimizer's state, "
        "2 gradients too, 3 parameters too.",
    )
    offload_optimizer: bool = Field(
        False, description="Keep the optimizer's state and step in CPU memory; stages 1 to 3."
    )
    offload_parameters: bool = Field(
        False, description="Keep the parameters in CPU memory between their uses; stage 3."
    )
    activation_checkpointing: bool = Field(
        False, description="Compute activations again in the backward pass instead of keeping them."
    )
    wall_clock_breakdown: bool = Field(
        False, description="Let DeepSpeed log how long each part of a step takes."
    )
    deepspeed: dict[str, Any] = Field(
        default_factory=dict,
        description="A DeepSpeed configuration of your own, or the file of one; 'auto' values are "
        "filled in from this spec, and what contradicts it is refused.",
    )

    evaluate_every_steps: int | None = Field(
        None,
        ge=1,
        le=_MAX_INTEGER,
        description="Optimizer steps between evaluations, besides those at the end of each epoch.",
    )
    early_stopping_patience: int | None = Field(
        None,
        ge=1,
        le=_MAX_INTEGER,
        description="Evaluations without a better 'best_metric' after which training stops.",
    )
    save_every_steps: int | None = Field(
        None,
        ge=1,
        le=_MAX_INTEGER,
        description="Optimizer steps between checkpoints, besides those at the end of each epoch.",
    )
    keep: Literal["last", "best"] = Field(
        "last",
        description="Which checkpoint becomes the model: the last, or the best by 'best_metric'.",
    )
    best_metric: str = Field(
        "loss",
        description="Figure of evaluations by which 'keep' and 'early_stopping_patience' compare: "
        "'loss', or a metric of the task.",
    )
    best_direction: Literal["auto", "lowest", "highest"] = Field(
        "auto",
        description="Which value of 'best_metric' is the best; 'auto': the lowest loss, the "
        "highest of a metric.",
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

    num_workers: int = Field(2, ge=1, le=4096, description="Ray Train workers; the world size.")
    min_workers: int | None = Field(
        None,
        ge=1,
        le=_MAX_INTEGER,
        description="Fewest workers with which training continues when the cluster shrinks; it "
        "grows back later, each time from the last checkpoint. Default: 'num_workers'.",
    )
    accelerator: Literal["auto", "cpu", "gpu"] = Field(
        "auto", description="'auto' takes one GPU per worker where the cluster has any GPU."
    )
    cpus_per_worker: float = Field(
        0.5, ge=0.1, description="Logical CPUs that each worker reserves in the Ray cluster."
    )
    threads_per_worker: int = Field(
        1, ge=1, le=256, description="Threads of each worker's arithmetic on the CPU."
    )

    @property
    def sharding_stage(self) -> int:
        """What is sharded over the workers, as a stage of ZeRO; 0 is nothing."""
        return self.zero_stage if self.strategy == "zero" else 0

    @property
    def criterion(self) -> Criterion:
        """The figure by which checkpoints are compared."""
        is_loss = self.best_metric == "loss"
        is_auto = self.best_direction == "auto"
        return Criterion(self.best_metric, is_loss if is_auto else self.best_direction == "lowest")

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
                changes[name] = str(folder / Path(path).expanduser())
        files = tuple(
            entry.model_copy(update={"file": str(folder / Path(entry.file).expanduser())})
            for entry in self.train_files
        )
        base_model = folder / Path(self.base_model).expanduser()
        if base_model.is_dir():
            changes["base_model"] = str(base_model)
        if files:
            changes["train_files"] = files
        return self.model_copy(update=changes)


def _drop_paths(config: Mapping[str, Any]) -> dict[str, Any]:
    """Remove keys that name files and folders from a DeepSpeed configuration, at any depth."""
    return {
        key: _drop_paths(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if not key.endswith(("_path", "_file", "_dir"))
    }


def name_source(source: str) -> str:
    """Return the name of a model or a data set without its folder; an id on the hub unchanged."""
    path = Path(source)
    return path.name if path.is_absolute() or path.exists() else source


def load_spec(path: Path) -> TrainingSpec:
    """Read a spec from YAML or JSON; its paths are relative to its own folder.

    Raises `ValueError` that names the file and every faulty key.
    """
    content = read_spec_file(path)
    try:
        spec = TrainingSpec.model_validate(content)
    except ValidationError as exc:
        raise ValueError(f"{path.name}: {describe_validation_error(exc)}") from exc
    return spec.pin_paths(path.resolve().parent)


def describe_validation_error(exc: ValidationError) -> str:
    """Describe a user's errors: each faulty key, the value found and what was expected."""
    known = ", ".join(TrainingSpec.model_fields) if exc.title == TrainingSpec.__name__ else ""
    return describe_faults(exc.errors(), known)
