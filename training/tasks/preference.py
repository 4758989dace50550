"""The task of preference tuning: prefer the better of two answers, by DPO, IPO, ORPO or KTO."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from training.settings.preference_settings import PreferenceSettings
from training.task import BatchResult, MicroBatch, Task

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from training.batching import BatchLayout
    from training.data.preference.reader import PreferenceReader
    from training.data.readers import KnownFile, RowSource
    from training.data.row_table import RowTable
    from training.losses.preference import PreferenceBatch, PreferenceMetrics
    from training.spec import TrainingSpec

NUM_SIDES = 2
"""The sequences of a row in a micro batch."""

_KTO_SETTINGS = ("desirable_weight", "undesirable_weight")


class PreferenceTask:
    """Fine-tuning of a decoder by comparing answers."""

    settings = PreferenceSettings
    model_class = "AutoModelForCausalLM"
    adds_head = False
    generates = True
    learns_tokens = False
    unused_settings = ("format", "learned_turns", "batch_layout")
    default_micro_batch_size = None

    @property
    def column_names(self) -> Sequence[str]:
        """The keys of all formats of rows."""
        from training.data.preference.formats import KNOWN_KEYS

        return KNOWN_KEYS

    def list_metrics(self, spec: "TrainingSpec") -> Sequence[str]:
        """Return the metrics; without a reference there is no divergence from it."""
        has_reference = _read_settings(spec).loss != "orpo"
        return ("reward_accuracy", "reward_margin", *(["kl"] if has_reference else []))

    def check_spec(self, spec: "TrainingSpec") -> None:
        """Raise `ValueError` for settings that the loss does not have, or that cannot work."""
        settings = _read_settings(spec)
        for name in _KTO_SETTINGS if settings.loss != "kto" else ():
            if getattr(settings, name) != PreferenceSettings.model_fields[name].default:
                raise ValueError(
                    f"task_settings.{name} is {getattr(settings, name)}, which means nothing to "
                    f"the loss {settings.loss!r}: remove it, or set task_settings.loss to 'kto'"
                )
        if settings.loss == "kto" and spec.micro_batch_size == 1:
            raise ValueError(
                "micro_batch_size is 1, expected at least 2 for the loss 'kto', which estimates "
                "its baseline from the rows of a micro batch"
            )
        if spec.data_engine != "local":
            raise ValueError(
                f"data_engine is {spec.data_engine!r}, and task 'preference' needs rows with "
                "stored numbers, for figures that are computed once before training: set it to "
                "'local'"
            )
        if spec.max_length is not None and NUM_SIDES * spec.max_length > spec.micro_batch_tokens:
            raise ValueError(
                f"micro_batch_tokens is {spec.micro_batch_tokens}, less than twice max_length "
                f"{spec.max_length}: a row has two sides; raise micro_batch_tokens or lower "
                "max_length"
            )

    def check_config(self, config: Any, name: str) -> None:
        """Raise `ValueError` for a model that is not causal."""
        from model_files.trainable import check_causal_task

        check_causal_task(config, name)

    def save_companions(self, base_model: str, directory: "Path") -> None:
        """Save nothing: consolidation saves the tokenizer and the settings of generation."""

    def open_source(self, path: "Path", spec: "TrainingSpec", known: "KnownFile | None") -> None:
        """Return None: files of rows need no source of their own."""

    def open_data(self, spec: "TrainingSpec") -> "PreferenceData":
        """Open what reads preference rows; raises `SettingError` for the base model."""
        return PreferenceData(spec)

    def open_objective(
        self,
        spec: "TrainingSpec",
        summary: Mapping[str, Any],  # noqa: ARG002 - the rows decide nothing
    ) -> "PreferenceObjective":
        """Open the loss."""
        return PreferenceObjective(self, _read_settings(spec))


class PreferenceData:
    """Rows as two sides of tokens with masks of the learned ones."""

    def __init__(self, spec: "TrainingSpec", *, is_preview: bool = False) -> None:
        """Open the tokenizer; for a preview, rows for KTO get no answer of another row.

        Raises `SettingError` for the base model.
        """
        from training.base_model import choose_max_length, find_end_ids, load_tokenizer
        from training.data.preference.pair_layout import PAIR_LAYOUT

        self.layout = PAIR_LAYOUT
        self.tokenizer = load_tokenizer(spec.base_model, spec.template_arguments)
        self.max_length = min(choose_max_length(spec), spec.micro_batch_tokens // NUM_SIDES)
        self._spec = spec
        self._is_preview = is_preview
        self._is_unpaired = _read_settings(spec).loss == "kto"
        self._end_ids = find_end_ids(spec.base_model, self.tokenizer)

    def describe_inputs(self) -> Mapping[str, Any]:
        """Return what determines the tokens of a source."""
        return {
            "tokenizer": self.tokenizer.backend_tokenizer.to_str(),
            "special_tokens": self.tokenizer.special_tokens_map,
            "chat_template": self.tokenizer.chat_template,
            "end_ids": self._end_ids,
            "reasoning": self._spec.reasoning,
            "is_unpaired": self._is_unpaired,
        }

    def open_reader(self, source: "RowSource", fallback: str | None) -> "PreferenceReader":  # noqa: ARG002 - each source has a format of its own
        """Open a reader for one source."""
        from training.data.preference.reader import PreferenceReader

        return PreferenceReader(
            source,
            self._spec,
            self.tokenizer,
            self._end_ids,
            self.max_length,
            is_unpaired=self._is_unpaired,
            needs_mismatch=not self._is_preview,
        )

    def summarise(
        self,
        train: "RowTable",  # noqa: ARG002 - its counts describe it
        validation: "RowTable | None",  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """Return nothing: the counts of rows and tokens describe them."""
        return {}


class PreferenceObjective:
    """The loss and the metrics of preference rows."""

    task: Task

    def __init__(self, task: PreferenceTask, settings: PreferenceSettings) -> None:
        from training.data.preference.pair_layout import PAIR_LAYOUT

        self.task = task
        self.layout = PAIR_LAYOUT
        self.needs_references = settings.loss != "orpo"
        self._settings = settings

    def adapt_config(self, config: Any) -> None:
        """Leave the configuration as it is."""

    def weigh_targets(self, rows: "RowTable", indices: Sequence[int]) -> float:  # noqa: ARG002
        """Return the number of rows."""
        return len(indices)

    def collate(
        self,
        rows: Sequence[Any],
        layout: "BatchLayout",  # noqa: ARG002 - always padded
        *,
        is_training: bool,  # noqa: ARG002 - the same in an evaluation
    ) -> MicroBatch:
        """Build one micro batch of both sides of all rows."""
        from training.losses.preference import collate_pairs

        return collate_pairs(rows, learns_prompts=self._settings.loss == "orpo")

    def compute(self, model: Any, batch: MicroBatch) -> BatchResult:
        """Compute the summed loss of the rows and their rewards."""
        from training.losses.preference import compute_preference

        return compute_preference(model, cast("PreferenceBatch", batch), self._settings)

    def compute_references(self, model: Any, batch: MicroBatch) -> "torch.Tensor":
        """Compute the log-probabilities of both sides of each row, `[B, 2]`."""
        from training.losses.preference import compute_token_logps, sum_answers

        pairs = cast("PreferenceBatch", batch)
        return sum_answers(compute_token_logps(model, pairs), pairs)

    def open_metrics(self, device: "torch.device") -> "PreferenceMetrics":
        """Open the metrics of the loss."""
        from training.losses.preference import PreferenceMetrics

        return PreferenceMetrics(self._settings, device)

    def make_probe_inputs(self, config: Any) -> "Mapping[str, torch.Tensor]":
        """Make a fixed prompt and its attention mask, both of shape `[1, 16]`."""
        from training.checkpoint.reference_logits import make_prompt

        return make_prompt(config)


def _read_settings(spec: "TrainingSpec") -> PreferenceSettings:
    return PreferenceSettings.model_validate(spec.task_settings)


TASK = PreferenceTask()
