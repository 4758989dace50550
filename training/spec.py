"""What a fine-tune is: one frozen, typed spec, the same for YAML, HTTP and the web form."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

DataFormat = Literal["auto", "chat", "prompt_completion", "alpaca", "text"]


class TrainingSpec(BaseModel):
    """Everything that decides what a fine-tune computes and what it may use.

    Unknown keys are refused. Raises `pydantic.ValidationError`, a `ValueError`, for a value out of
    its range; `describe_validation_error` says it in words.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    base_model: str = Field(
        min_length=1, description="Folder of a Hugging Face model, or a model id on the hub."
    )
    train_file: str = Field(min_length=1, description="File of rows to learn from: JSON or JSONL.")
    format: DataFormat = Field(
        "auto", description="Shape of a row; 'auto' recognises it by the keys of the first row."
    )
    max_length: int | None = Field(
        None,
        ge=8,
        description="Tokens of one row, longer ones are truncated; default: the model's context.",
    )

    epochs: int = Field(3, ge=1, le=1000, description="Passes over the rows.")
    learning_rate: float = Field(1e-4, gt=0, le=1, description="Peak learning rate of AdamW.")
    lr_schedule: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="How the learning rate falls after the warm-up; to 0 unless constant."
    )
    warmup_ratio: float = Field(
        0.05, ge=0, lt=1, description="Share of the steps in which the learning rate rises from 0."
    )
    weight_decay: float = Field(
        0.01, ge=0, le=1, description="Decoupled weight decay; never on norms and biases."
    )
    max_grad_norm: float = Field(
        1.0, gt=0, description="Global norm at which gradients are clipped."
    )
    micro_batch_tokens: int = Field(
        1024, ge=8, description="Padded tokens in one micro batch of one worker, at most."
    )
    micro_batch_size: int | None = Field(
        None, ge=1, description="Rows in one micro batch of one worker, at most; default: no limit."
    )
    gradient_accumulation_steps: int = Field(
        1, ge=1, description="Micro batches of one worker per optimizer step."
    )
    precision: Literal["bf16", "fp32"] = Field(
        "bf16", description="Arithmetic of the forward and backward pass; master weights are fp32."
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the order of rows and of dropout.")

    keep: Literal["last", "best"] = Field(
        "last",
        description="Which checkpoint becomes the model: the last, or that of the epoch with the "
        "lowest training loss.",
    )
    keep_checkpoints: int = Field(
        2, ge=1, description="Checkpoints kept on disk, by the same choice as 'keep'."
    )

    num_workers: int = Field(2, ge=1, description="Ray Train workers; the world size.")
    accelerator: Literal["auto", "cpu", "gpu"] = Field(
        "auto", description="'auto' takes one GPU per worker where the cluster has any GPU."
    )
    cpus_per_worker: float = Field(
        0.5, ge=0.1, description="Logical CPUs that each worker reserves in the Ray cluster."
    )
    threads_per_worker: int = Field(
        1, ge=1, description="Threads of each worker's arithmetic on the CPU."
    )

    @model_validator(mode="after")
    def _check_budget(self) -> Self:
        if self.max_length is not None and self.max_length > self.micro_batch_tokens:
            raise ValueError(
                f"micro_batch_tokens is {self.micro_batch_tokens}, less than max_length "
                f"{self.max_length}: a row of full length would fit no micro batch; raise "
                "micro_batch_tokens or lower max_length"
            )
        return self

    def pin_paths(self, folder: Path) -> "TrainingSpec":
        """Make relative paths absolute: they are meant relative to the spec's own folder."""
        train_file = folder / Path(self.train_file).expanduser()
        base_model = folder / Path(self.base_model).expanduser()
        return self.model_copy(
            update={
                "train_file": str(train_file),
                "base_model": str(base_model) if base_model.is_dir() else self.base_model,
            }
        )


def load_spec(path: Path) -> TrainingSpec:
    """Read a spec from YAML or JSON; paths in it are relative to its own folder.

    Raises `ValueError` that names the file and every faulty key.
    """
    try:
        content = yaml.safe_load(path.read_text())  # JSON is YAML too
    except FileNotFoundError:
        raise ValueError(f"no spec at {str(path)!r}: expected a YAML or JSON file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise ValueError(f"{str(path)!r} is neither YAML nor JSON: {exc}") from exc
    if not isinstance(content, Mapping):
        raise ValueError(f"{str(path)!r} holds {type(content).__name__}, expected keys and values")
    try:
        spec = TrainingSpec.model_validate(content)
    except ValidationError as exc:
        raise ValueError(f"{path.name}: {describe_validation_error(exc)}") from exc
    return spec.pin_paths(path.resolve().parent)


def describe_validation_error(exc: ValidationError) -> str:
    """Say what a user got wrong: each faulty key, the value found and what was expected."""
    known = ", ".join(TrainingSpec.model_fields) if exc.title == TrainingSpec.__name__ else ""
    return describe_faults(exc.errors(), known)


def describe_faults(faults: Sequence[Any], known: str = "") -> str:
    """Put pydantic's list of faults into words; `known` are the keys that there are."""
    return "; ".join(_describe_fault(fault, known) for fault in faults)


def _describe_fault(fault: Any, known: str) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "missing":
        return f"{key} is missing"
    if fault["type"] == "extra_forbidden":
        there_are = f"the settings are: {known}" if known else "look for a misspelt name"
        return f"{key!r} is not a setting; {there_are}"
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    if fault["type"] == "json_invalid":
        return f"the body is not JSON: {fault['ctx']['error']}"
    found = json.dumps(fault["input"], default=str)
    return f"{key} is {found[:80]}: {fault['msg'].replace('Input should', 'it should')}"
