"""The metrics of a model over the rows of an evaluation that are done."""

from dataclasses import dataclass

from apps.evaluations.evaluation_record import ModelFigures, StoredAnswer
from apps.evaluations.text_metrics import compute_perplexity


@dataclass
class ModelTally:
    """Sums over the answers of one model; answers with an error only count as failed."""

    num_rows: int = 0
    num_failed: int = 0
    num_exact: int = 0
    num_containing: int = 0
    rouge_l: float = 0.0
    loss_sum: float = 0.0
    num_tokens: int = 0

    def add(self, answer: StoredAnswer) -> None:
        """Add the answer to one row."""
        self.num_rows += 1
        if answer.error is not None:
            self.num_failed += 1
            return
        self.num_exact += answer.exact_match
        self.num_containing += answer.contains
        self.rouge_l += answer.rouge_l
        self.loss_sum += answer.loss_sum
        self.num_tokens += answer.num_tokens

    def describe(self, figures: ModelFigures) -> ModelFigures:
        """Return the model with its metrics; the perplexity is that of all tokens together."""
        num_answered = self.num_rows - self.num_failed
        changes: dict[str, object] = {"num_rows": self.num_rows, "num_failed": self.num_failed}
        if num_answered:
            changes |= {
                "exact_match": self.num_exact / num_answered,
                "contains": self.num_containing / num_answered,
                "rouge_l": self.rouge_l / num_answered,
                "perplexity": compute_perplexity(self.loss_sum, self.num_tokens),
            }
        return figures.model_copy(update=changes)
