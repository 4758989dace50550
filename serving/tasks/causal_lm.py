"""Language models: a generator produces text with them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serving.served_task import AnswerKind, Companion, select_all_mismatches


class ServedLanguageModel:
    """The task of language models, and of all models that no other task recognises."""

    model_class = "AutoModelForCausalLM"
    answers: AnswerKind = "text"
    description = "is a language model; use POST /v1/chat/completions or POST /v1/completions"
    companion: Companion = "tokenizer.json"
    select_mismatches = staticmethod(select_all_mismatches)

    def matches(self, config: Mapping[str, Any]) -> bool:  # noqa: ARG002 - all models are
        """Return true: a generator reports what else prevents that it loads a model."""
        return True

    def try_companion(self, directory: Path) -> int:
        """Try the tokenizer, also with the control tokens of chats."""
        from serving.loading.inspection import try_tokenizer

        return try_tokenizer(directory)

    def open_predictor(self, directory: Path) -> None:
        """Return None: a generator loads it."""


TASK = ServedLanguageModel()
