"""Tasks: what is learned, from which rows, by which class of models, and how it is measured.

Everything else is the same for all tasks: batches, steps, checkpoints, consolidation, publishing.
A task is one module in `training/tasks/` that defines `TASK`; its name is the module's.
"""

import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel

from training import tasks

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from training.batching import BatchLayout
    from training.data.readers import KnownFile, RowSource
    from training.data.row_table import RowLayout, RowTable
    from training.data.rows import RowReader
    from training.spec import TrainingSpec


class Task(Protocol):
    """What is learned. Nothing heavy is imported until one of its parts is opened."""

    @property
    def settings(self) -> type[BaseModel]:
        """The settings of its own, `task_settings` of a spec; it must refuse unknown keys."""

    @property
    def model_class(self) -> str:
        """The class of transformers that loads its models, such as 'AutoModelForCausalLM'."""

    @property
    def adds_head(self) -> bool:
        """Whether the model's head may be new: then only the weights of the base model must fit."""

    @property
    def generates(self) -> bool:
        """Whether its models generate text, with a chat template and settings of generation."""

    @property
    def learns_tokens(self) -> bool:
        """Whether learned tokens are the targets: then rows may be flattened, with a perplexity."""

    @property
    def column_names(self) -> Sequence[str]:
        """Names of columns by which a table is recognised in a file of any kind."""

    @property
    def default_micro_batch_size(self) -> int | None:
        """Rows of a micro batch if a spec has no `micro_batch_size`; None: no limit."""

    @property
    def unused_settings(self) -> Sequence[str]:
        """The settings of a spec that mean nothing to the task; they are refused."""

    def list_metrics(self, spec: "TrainingSpec") -> Sequence[str]:
        """Return the names of the metrics of an evaluation, besides the loss."""

    def check_spec(self, spec: "TrainingSpec") -> None:
        """Raise `ValueError` for settings that mean nothing to this task, or lack another one."""

    def check_config(self, config: Any, name: str) -> None:
        """Raise `ValueError` for the configuration of a base model that cannot learn the task.

        `name` is the model's name for the message.
        """

    def save_companions(self, base_model: str, directory: "Path") -> None:
        """Save what a model needs beside weights and configuration, unless it generates text."""

    def open_source(
        self, path: "Path", spec: "TrainingSpec", known: "KnownFile | None"
    ) -> "RowSource | None":
        """Open a file or folder that needs a source of the task's own.

        None: it is a file of rows as all tasks read them, or a folder of such files. `known` is the
        record of an uploaded file.
        """

    def open_data(self, spec: "TrainingSpec") -> "TaskData":
        """Open what reads the rows of a spec; raises `SettingError` for its base model."""

    def open_objective(self, spec: "TrainingSpec", summary: Mapping[str, Any]) -> "Objective":
        """Open the loss and its metrics; `summary` contains what `TaskData.summarise` returned."""


class TaskData(Protocol):
    """How the rows of a task become a table, for one spec."""

    @property
    def layout(self) -> "RowLayout[Any, Any]":
        """How the rows are stored."""

    @property
    def max_length(self) -> int:
        """The largest length of a row."""

    def describe_inputs(self) -> Mapping[str, Any]:
        """Return what determines the table of a source, besides the source: JSON values."""

    def open_reader(self, source: "RowSource", fallback: str | None) -> "RowReader[Any, Any]":
        """Open a reader for one source; `fallback` is the format of the first source."""

    def summarise(self, train: "RowTable", validation: "RowTable | None") -> Mapping[str, Any]:
        """Check all rows together, and describe them for `Task.open_objective`.

        Raises `DataError`.
        """


@dataclass(frozen=True)
class MicroBatch:
    """A model's inputs by their names, and the labels that the loss compares with its outputs.

    The shapes are the task's.
    """

    inputs: "Mapping[str, torch.Tensor]"
    labels: "torch.Tensor"

    def to(self, device: "torch.device") -> "MicroBatch":
        """Copy the tensors to a device."""
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        return MicroBatch(inputs, self.labels.to(device))


@dataclass(frozen=True)
class BatchResult:
    """The loss summed over the targets of a batch, shape `[]`, in fp32, and what was predicted.

    `predictions` has one row for each row of the batch; None if the task measures only its loss.
    """

    loss_sum: "torch.Tensor"
    predictions: "torch.Tensor | None" = None


@dataclass(frozen=True)
class ConfusionMatrix:
    """How often rows of each class were predicted as each class.

    `counts[i][j]` is the number of rows of class `labels[i]` that were predicted as `labels[j]`.
    """

    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


class Objective(Protocol):
    """The loss of a task and its metrics, for one spec."""

    @property
    def task(self) -> Task:
        """The task that it belongs to."""

    @property
    def layout(self) -> "RowLayout[Any, Any]":
        """How the rows were stored."""

    @property
    def needs_references(self) -> bool:
        """Whether rows need figures of the model as it starts, by `ReferenceObjective`."""

    def adapt_config(self, config: Any) -> None:
        """Set in a base model's configuration what the task determines, such as its labels."""

    def weigh_targets(self, rows: "RowTable", indices: Sequence[int]) -> float:
        """Return the total weight of the targets of rows, by which their loss is divided."""

    def collate(
        self, rows: Sequence[Any], layout: "BatchLayout", *, is_training: bool
    ) -> MicroBatch:
        """Build one micro batch from rows as their table returns them.

        Without rows, it has one row that adds nothing to the loss. `is_training` is false in an
        evaluation. Any randomness must be that of torch's default generator on the CPU, which is
        seeded before each micro batch of a training.
        """

    def compute(self, model: Any, batch: MicroBatch) -> BatchResult:
        """Compute the loss of a batch; its gradient reaches every weight that the task trains."""

    def open_metrics(self, device: "torch.device") -> "Metrics | None":
        """Open metrics of an evaluation; None if the task measures only its loss."""

    def make_probe_inputs(self, config: Any) -> "Mapping[str, torch.Tensor]":
        """Make fixed inputs, with which an exported model is verified; one row if it generates."""


class ReferenceObjective(Objective, Protocol):
    """An objective whose loss compares the model with the model as it starts, the reference."""

    def compute_references(self, model: Any, batch: MicroBatch) -> "torch.Tensor":
        """Compute the figures of the reference for the rows of a batch, `[B, 2]`, in fp32."""


class Metrics(Protocol):
    """The metrics of one evaluation, over the rows of all workers."""

    def add(self, predictions: "torch.Tensor", labels: "torch.Tensor") -> None:
        """Add the rows of a batch; every row of the set is added once, on one worker."""

    def compute(self) -> dict[str, float]:
        """Return the metrics by their names; all workers must call this together."""

    def count_predictions(self) -> ConfusionMatrix | None:
        """Return the confusion matrix; all workers must call this together.

        None if a row has not exactly one class, or if there are too many classes to show.
        """


@cache
def list_tasks() -> tuple[str, ...]:
    """Return the names of all tasks."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(tasks.__path__)))


def find_task(name: str) -> Task:
    """Return the task of this name; raises `ValueError` for an unknown one."""
    if name not in list_tasks():
        known = ", ".join(repr(one) for one in list_tasks())
        raise ValueError(f"task is {name!r}, expected one of {known}")
    found: Task = import_module(f"{tasks.__name__}.{name}").TASK
    return found


def open_default_objective() -> Objective:
    """Open the objective of a causal language model, for a checkpoint without a spec."""
    from training.tasks.causal_lm import TASK, NextTokenObjective

    return NextTokenObjective(TASK)
