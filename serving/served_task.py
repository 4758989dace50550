"""What serving knows about a task: which models are of it, which files they need, who answers.

A task is one module in `serving/tasks/` that defines `TASK`; its name is the module's, and that of
the task in `training/tasks/` that makes such models. The API imports these modules, so they import
torch and transformers only in functions.
"""

import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from serving import tasks

DEFAULT_TASK = "causal_lm"
AnswerKind = Literal["text", "labels", "vectors"]
Companion = Literal["tokenizer.json", "preprocessor_config.json"]
"""The file that a model needs beside its weights and its configuration."""


class EncodedInput(Protocol):
    """One input of a request, as a predictor computes it."""

    @property
    def num_tokens(self) -> int:
        """The number of its tokens; zero for an image."""


class Predictor(Protocol):
    """One loaded model that computes rows of numbers, several inputs at a time.

    Encode in one thread at a time, and predict in one thread at a time.
    """

    @property
    def input_bytes(self) -> int:
        """The bytes that one encoded input needs, at most; zero if they are negligible."""

    @property
    def labels(self) -> Sequence[str]:
        """The names of the columns of a row; empty if they have none."""

    @property
    def predicts_value(self) -> bool:
        """Whether a row is one number that the model predicts, not the score of a label."""

    def encode(self, request: Any) -> Sequence[EncodedInput]:
        """Convert the inputs of a `ClassifyRequest`, or of an `EmbeddingRequest` for vectors.

        Raises `InvalidRequestError` for inputs that the model cannot take.
        """

    def predict(self, inputs: Sequence[Any]) -> Sequence[Sequence[float]]:
        """Compute a row of numbers for each input that `encode` returned."""


class ServedTask(Protocol):
    """A task whose models are served."""

    @property
    def model_class(self) -> str:
        """The class of transformers that loads its models, such as 'AutoModelForCausalLM'."""

    @property
    def answers(self) -> AnswerKind:
        """What its models answer with, which decides the deployment and the routes."""

    @property
    def description(self) -> str:
        """What a model is, and what to do with it, as in 'is a language model; use …'."""

    @property
    def companion(self) -> Companion:
        """The file that each of its models needs beside weights and configuration."""

    def matches(self, config: Mapping[str, Any]) -> bool:
        """Return whether a parsed `config.json` is that of a model of this task."""

    def select_mismatches(self, report: Mapping[str, Any], model: Any) -> Mapping[str, Any]:
        """Return what of transformers' report on weights that do not fit prevents serving."""

    def try_companion(self, directory: Path) -> int:
        """Load and try what is beside the weights; return its bytes in memory.

        Runs in the process with limits that checks a model before its import. Raises `ValueError`
        or `EngineDeadError`.
        """

    def open_predictor(self, directory: Path) -> Predictor | None:
        """Load a model on the CPU; raises `EngineDeadError`. None: a generator serves it."""


def select_all_mismatches(report: Mapping[str, Any], model: Any) -> Mapping[str, Any]:  # noqa: ARG001 - all its weights are used
    """Return the whole report: `select_mismatches` of a task that uses all weights."""
    return report


@cache
def list_served_tasks() -> tuple[str, ...]:
    """Return the names of all tasks whose models are served."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(tasks.__path__)))


@cache
def find_served_task(name: str) -> ServedTask:
    """Return the task of this name, which must be one of `list_served_tasks`."""
    found: ServedTask = import_module(f"{tasks.__name__}.{name}").TASK
    return found


def find_model_task(config: Mapping[str, Any]) -> str:
    """Return the name of the task of a parsed `config.json`: `DEFAULT_TASK` if no other fits."""
    others = (name for name in list_served_tasks() if name != DEFAULT_TASK)
    return next((name for name in others if find_served_task(name).matches(config)), DEFAULT_TASK)


def find_architecture(config: Mapping[str, Any]) -> str:
    """Return the name of the class in a parsed `config.json`; empty if there is none."""
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""
