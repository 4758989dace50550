"""The task of causal language models: predict the next token of a text, a prompt or a chat."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from training.task import BatchResult, MicroBatch, Task

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from training.batching import BatchLayout
    from training.data.readers import KnownFile, RowSource
    from training.data.row_table import RowTable
    from training.data.text.reader import TextReader
    from training.spec import TrainingSpec


class CausalSettings(BaseModel):
    """No settings: those of its rows are the spec's own."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CausalTask:
    """Fine-tuning of a decoder: the loss counts the answers of a chat, or all tokens of a text."""

    settings = CausalSettings
    model_class = "AutoModelForCausalLM"
    adds_head = False
    generates = True
    learns_tokens = True
    unused_settings = ()
    default_micro_batch_size = None

    @property
    def column_names(self) -> Sequence[str]:
        """The keys of all formats of rows."""
        from training.data.text.formats import KNOWN_KEYS

        return KNOWN_KEYS

    def list_metrics(self, spec: "TrainingSpec") -> Sequence[str]:  # noqa: ARG002 - no metric
        """Return nothing: the perplexity follows from the loss."""
        return ()

    def check_spec(self, spec: "TrainingSpec") -> None:
        """Accept every combination of settings."""

    def check_config(self, config: Any, name: str) -> None:
        """Raise `ValueError` for a model that is not causal."""
        from model_files.trainable import check_causal_task

        check_causal_task(config, name)

    def save_companions(self, base_model: str, directory: "Path") -> None:
        """Save nothing: consolidation saves the tokenizer and the settings of generation."""

    def open_source(
        self,
        path: "Path",
        spec: "TrainingSpec",
        known: "KnownFile | None",
    ) -> None:
        """Return None: files of rows need no source of their own."""

    def open_data(self, spec: "TrainingSpec") -> "TextData":
        """Open what reads texts; raises `SettingError` for the base model."""
        return TextData(spec)

    def open_objective(
        self,
        spec: "TrainingSpec",  # noqa: ARG002 - the loss has no settings
        summary: Mapping[str, Any],  # noqa: ARG002
    ) -> "NextTokenObjective":
        """Open the loss."""
        return NextTokenObjective(self)


class TextData:
    """Rows as tokens with a mask of the learned ones."""

    def __init__(self, spec: "TrainingSpec") -> None:
        from training.base_model import choose_max_length, find_end_ids, load_tokenizer
        from training.data.text.token_layout import TOKEN_LAYOUT

        self.layout = TOKEN_LAYOUT
        self.tokenizer = load_tokenizer(spec.base_model, spec.template_arguments)
        self.max_length = choose_max_length(spec)
        self._spec = spec
        self._end_ids = find_end_ids(spec.base_model, self.tokenizer)

    def describe_inputs(self) -> Mapping[str, Any]:
        """Return what determines the tokens of a source."""
        return {
            "tokenizer": self.tokenizer.backend_tokenizer.to_str(),
            "special_tokens": self.tokenizer.special_tokens_map,
            "chat_template": self.tokenizer.chat_template,
            "end_ids": self._end_ids,
            "learned_turns": self._spec.learned_turns,
            "reasoning": self._spec.reasoning,
            "format": self._spec.format,
        }

    def open_reader(self, source: "RowSource", fallback: str | None) -> "TextReader":
        """Open a reader for one source."""
        from training.data.text.reader import TextReader

        return TextReader(source, self._spec, self.tokenizer, fallback, self._end_ids)

    def summarise(
        self,
        train: "RowTable",  # noqa: ARG002 - its counts describe it
        validation: "RowTable | None",  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """Return nothing: the counts of rows and tokens describe them."""
        return {}


class NextTokenObjective:
    """Cross entropy of the learned tokens."""

    task: Task
    needs_references = False

    def __init__(self, task: CausalTask) -> None:
        from training.data.text.token_layout import TOKEN_LAYOUT

        self.task = task
        self.layout = TOKEN_LAYOUT

    def adapt_config(self, config: Any) -> None:
        """Leave the configuration as it is."""

    def weigh_targets(self, rows: "RowTable", indices: Sequence[int]) -> float:
        """Return the number of learned tokens."""
        return int(rows.num_targets[list(indices)].sum())

    def collate(
        self,
        rows: Sequence[Any],
        layout: "BatchLayout",
        *,
        is_training: bool,  # noqa: ARG002 - the same in an evaluation
    ) -> MicroBatch:
        """Build one micro batch; without rows, it has one token, which is not learned."""
        from training.losses.next_token import collate_tokens

        return collate_tokens(rows, layout)

    def compute(self, model: Any, batch: MicroBatch) -> BatchResult:
        """Compute the summed cross entropy of the learned tokens."""
        from training.losses.next_token import sum_loss

        return BatchResult(sum_loss(model, batch))

    def open_metrics(self, device: "torch.device") -> None:
        """Return None: only the loss is measured."""

    def make_probe_inputs(self, config: Any) -> "Mapping[str, torch.Tensor]":
        """Make a fixed prompt and its attention mask, both of shape `[1, 16]`."""
        from training.checkpoint.reference_logits import make_prompt

        return make_prompt(config)


TASK = CausalTask()
