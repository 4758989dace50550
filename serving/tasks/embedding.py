"""Encoders without a head that answers requests: vectors of texts."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.served_task import AnswerKind, Companion, find_architecture

if TYPE_CHECKING:
    from serving.classification.text_embedder import TextEmbedder

# Encoders by the name of their class without a head; decoders are named in the same way.
_ENCODERS = frozenset(
    f"{family}Model"
    for family in (
        *("Albert", "Bert", "Camembert", "Deberta", "DebertaV2", "DistilBert", "Electra"),
        *("Ernie", "EuroBert", "MPNet", "ModernBert", "NomicBert", "Roberta", "XLMRoberta"),
        "XLMRobertaXL",
    )
)


class ServedEncoder:
    """The task of encoders: they embed texts, and are base models of classifiers."""

    model_class = "AutoModel"
    answers: AnswerKind = "vectors"
    description = (
        "is an encoder; use POST /v1/embeddings, or fine-tune it with the task "
        "'sequence_classification'"
    )
    companion: Companion = "tokenizer.json"

    def matches(self, config: Mapping[str, Any]) -> bool:
        """Return whether it is an encoder without a head, or with that of a masked language model.

        An encoder whose configuration sets `is_decoder` is a language model, as in
        `model_files.trainable`.
        """
        name = find_architecture(config)
        is_encoder = name.endswith("ForMaskedLM") or name in _ENCODERS
        return is_encoder and config.get("is_decoder") is not True

    def select_mismatches(self, report: Mapping[str, Any], model: Any) -> Mapping[str, Any]:
        """Return the report without heads and poolers, which are not used."""
        parts = {model.base_model_prefix, *(name for name, _ in model.named_children())}

        def is_used(found: Any, kind: str) -> bool:
            names = str(found[0] if isinstance(found, tuple) else found).split(".")
            return "pooler" not in names and (kind != "unexpected_keys" or names[0] in parts)

        return {
            kind: [one for one in found if is_used(one, kind)] for kind, found in report.items()
        }

    def try_companion(self, directory: Path) -> int:
        """Try the tokenizer, and read the pooling."""
        from serving.loading.inspection import try_tokenizer
        from serving.loading.pooling import read_pooling

        read_pooling(directory)
        return try_tokenizer(directory, is_for_chat=False)

    def open_predictor(self, directory: Path) -> "TextEmbedder":
        """Load the encoder and its tokenizer."""
        from serving.classification.text_embedder import TextEmbedder

        return TextEmbedder.load(directory, self)


TASK = ServedEncoder()
