"""The task of sequence classification: predict the label or labels, or a number, of a text."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from training.settings.class_settings import CHAT_SETTINGS, ClassSettings
from training.task import BatchResult, MicroBatch, Task

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from training.batching import BatchLayout
    from training.data.labelled.texts import LabelledTextReader
    from training.data.readers import KnownFile, RowSource
    from training.data.row_table import RowTable
    from training.losses.classification import ClassificationMetrics
    from training.spec import TrainingSpec


_METRICS: Mapping[str, tuple[str, ...]] = {
    "single_label_classification": ("accuracy", "f1", "f1_macro", "matthews"),
    "multi_label_classification": ("accuracy", "f1_macro", "f1_micro"),
    "regression": ("pearson",),
}


class ClassificationSettings(ClassSettings):
    """The settings of sequence classification."""

    problem_type: Literal[
        "auto", "single_label_classification", "multi_label_classification", "regression"
    ] = Field(
        "auto",
        description="What a label is: one class, a list of classes, or a number to predict. "
        "'auto': a list where a row has one, a number where all labels are and some have a "
        "decimal point, else one class.",
    )


class SequenceClassificationTask:
    """Fine-tuning of a model with a classification head, new or trained."""

    settings = ClassificationSettings
    model_class = "AutoModelForSequenceClassification"
    adds_head = True
    generates = False
    learns_tokens = False
    unused_settings = CHAT_SETTINGS
    default_micro_batch_size = None

    @property
    def column_names(self) -> Sequence[str]:
        """The names of columns by which a table is recognised."""
        from training.data.labelled.texts import COLUMN_NAMES

        return COLUMN_NAMES

    def list_metrics(self, spec: "TrainingSpec") -> Sequence[str]:
        """Return the metrics of the problem type, or of all of them if the rows decide it."""
        kind = _read_settings(spec).problem_type
        found = _METRICS.values() if kind == "auto" else [_METRICS[kind]]
        return list(dict.fromkeys(name for group in found for name in group))

    def check_spec(self, spec: "TrainingSpec") -> None:
        """Raise `ValueError` for weights that have no class."""
        settings = _read_settings(spec)
        if settings.problem_type == "regression" and settings.labels:
            raise ValueError("task_settings.labels name classes, and problem_type is 'regression'")
        kinds = ("auto", "single_label_classification")
        if settings.class_weights != "equal" and settings.problem_type not in kinds:
            raise ValueError(
                f"task_settings.class_weights is {settings.class_weights!r}, which needs one class "
                f"for each row; problem_type is {settings.problem_type!r}"
            )

    def check_config(self, config: Any, name: str) -> None:
        """Raise `ValueError` for an architecture without a classification head."""
        from model_files.trainable import check_sequence_task

        check_sequence_task(config, name)

    def save_companions(self, base_model: str, directory: "Path") -> None:
        """Save the tokenizer."""
        from training.base_model import open_tokenizer

        tokenizer = open_tokenizer(base_model)
        tokenizer.init_kwargs.pop("auto_map", None)
        tokenizer.save_pretrained(directory)

    def open_source(
        self,
        path: "Path",
        spec: "TrainingSpec",
        known: "KnownFile | None",
    ) -> None:
        """Return None: files of rows need no source of their own."""

    def open_data(self, spec: "TrainingSpec") -> "LabelledData":
        """Open what reads labelled texts; raises `SettingError` for the base model."""
        return LabelledData(spec)

    def open_objective(
        self,
        spec: "TrainingSpec",  # noqa: ARG002 - the rows have decided
        summary: Mapping[str, Any],
    ) -> "ClassificationObjective":
        """Open the loss for the classes in the summary of the rows."""
        return ClassificationObjective(self, summary)


class LabelledData:
    """Rows as tokens with labels."""

    def __init__(self, spec: "TrainingSpec") -> None:
        from training.base_model import choose_max_length, load_tokenizer
        from training.data.labelled.texts import LABELLED_LAYOUT

        self.layout = LABELLED_LAYOUT
        self.max_length = choose_max_length(spec)
        self._tokenizer = load_tokenizer(spec.base_model)
        self._spec = spec

    def describe_inputs(self) -> Mapping[str, Any]:
        """Return what determines the tokens of a source."""
        return {
            "tokenizer": self._tokenizer.backend_tokenizer.to_str(),
            "special_tokens": self._tokenizer.special_tokens_map,
            "inputs": self._tokenizer.model_input_names,
        }

    def open_reader(self, source: "RowSource", fallback: str | None) -> "LabelledTextReader":  # noqa: ARG002 - each source names its columns
        """Open a reader for one source."""
        from training.data.labelled.texts import LabelledTextReader

        return LabelledTextReader(
            source,
            self._spec.columns,
            self._tokenizer,
            self.max_length,
            truncates=self._spec.overlong == "truncate",
        )

    def summarise(self, train: "RowTable", validation: "RowTable | None") -> Mapping[str, Any]:
        """Decide the problem type and the classes.

        Raises `DataError` for labels that do not fit, and `SettingError` for a metric that these
        rows do not have.
        """
        from model_files.pad_id import find_pad_id
        from training.base_model import load_config
        from training.data.labelled.label_survey import survey_labels
        from training.spec import SettingError

        settings = _read_settings(self._spec)
        classes = survey_labels(
            train, validation, settings.labels, settings.problem_type, settings.class_weights
        )
        metrics = ("loss", *_METRICS[classes["problem_type"]])
        if self._spec.best_metric not in metrics:
            raise SettingError(
                f"best_metric is {self._spec.best_metric!r}, but the labels are a "
                f"{classes['problem_type']} problem, expected one of {', '.join(metrics)}"
            )
        config = load_config(self._spec.base_model)
        return {**classes, "pad_token_id": find_pad_id(config, self._tokenizer)}


class ClassificationObjective:
    """The loss and the metrics of labelled rows."""

    task: Task
    needs_references = False

    def __init__(self, task: SequenceClassificationTask, summary: Mapping[str, Any]) -> None:
        from training.data.labelled.texts import LABELLED_LAYOUT
        from training.losses.classification import Classes, LabelEncoder

        self.task = task
        self.layout = LABELLED_LAYOUT
        names = tuple(summary["labels"])
        weights = tuple(summary["class_weights"])
        self._classes: Classes = Classes(summary["problem_type"], names, weights)
        self._encoder = LabelEncoder(self._classes)
        self._pad_token_id = int(summary["pad_token_id"])

    def adapt_config(self, config: Any) -> None:
        """Set the classes, their names, and the padding by which decoders find a row's end."""
        from training.losses.classification import set_classes

        set_classes(config, self._classes)
        config.get_text_config().pad_token_id = self._pad_token_id

    def weigh_targets(self, rows: "RowTable", indices: Sequence[int]) -> float:
        """Return the number of rows, or the sum of the weights of their classes."""
        return self._encoder.weigh_rows(rows, indices)

    def collate(
        self,
        rows: Sequence[Any],
        layout: "BatchLayout",  # noqa: ARG002 - always padded
        *,
        is_training: bool,  # noqa: ARG002 - the same in an evaluation
    ) -> MicroBatch:
        """Build one micro batch."""
        from training.losses.classification import collate_labelled

        labels = self._encoder.encode([row.labels for row in rows])
        return collate_labelled(rows, labels, self._pad_token_id)

    def compute(self, model: Any, batch: MicroBatch) -> BatchResult:
        """Compute the summed loss of the rows and their logits."""
        from training.losses.classification import compute_classification

        return compute_classification(model, batch, self._classes)

    def open_metrics(self, device: "torch.device") -> "ClassificationMetrics":
        """Open the metrics of the problem type."""
        from training.losses.classification import ClassificationMetrics

        names = _METRICS[self._classes.problem_type]
        return ClassificationMetrics(self._classes, names, device)

    def make_probe_inputs(self, config: Any) -> "Mapping[str, torch.Tensor]":
        """Make fixed texts and their attention mask, both of shape `[32, 16]`.

        The few logits of one text may be near zero, so that rounding changes them by much.
        """
        from training.checkpoint.reference_logits import make_prompt

        return make_prompt(config, num_rows=32)


def _read_settings(spec: "TrainingSpec") -> ClassificationSettings:
    return ClassificationSettings.model_validate(spec.task_settings)


TASK = SequenceClassificationTask()
