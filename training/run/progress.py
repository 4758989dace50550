"""The progress of a run: what a checkpoint contains besides weights, and how a step changes it."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from training.batching import BatchLayout
from training.criterion import Criterion

if TYPE_CHECKING:
    from training.engine import StepResult


class Progress(BaseModel):
    """The position of a run, from which a resumed run continues exactly.

    The order of rows, the learning rate and the seeds of dropout are functions of the step, so no
    other state is stored for them.
    """

    model_config = ConfigDict(frozen=True)

    step: int = Field(0, description="Optimizer steps taken.")
    epoch: int = Field(0, description="The epoch under way, counted from 0.")
    step_in_epoch: int = Field(0, description="Steps taken of it.")
    num_shares: int = Field(description="Workers that the batches were planned for.")
    layout: BatchLayout = Field("padded", description="Layout that they were planned in.")
    plan: str = Field("", description="Fingerprint of the order of the epoch under way.")

    epoch_loss_sum: float = Field(0.0, description="Loss of the epoch so far, over its tokens.")
    epoch_num_learned: int = Field(0, description="Learned tokens of the epoch so far.")
    trained_tokens: int = Field(0, description="Tokens trained on, padding left out.")
    learned_tokens: int = Field(0, description="Those of them that the loss counted.")
    elapsed_s: float = Field(0.0, description="Seconds of training, interruptions left out.")

    eval_loss: float | None = Field(None, description="Loss of the last evaluation.")
    evaluated_step: int | None = Field(None, description="Step of the last evaluation.")
    eval_metrics: dict[str, float] = Field(
        default_factory=dict, description="Other metrics of the last evaluation."
    )
    best_value: float | None = Field(
        None,
        validation_alias=AliasChoices("best_value", "best_loss"),  # the former name
        description="Best loss, or other chosen metric, of all evaluations.",
    )
    best_step: int | None = Field(None, description="Step of that evaluation.")
    num_worse: int = Field(0, description="Evaluations since then.")

    def take_step(self, result: "StepResult", elapsed_s: float) -> "Progress":
        """Add one optimizer step, and the seconds since the previous step."""
        return self._change(
            step=self.step + 1,
            step_in_epoch=self.step_in_epoch + 1,
            epoch_loss_sum=self.epoch_loss_sum + result.loss * result.num_targets,
            epoch_num_learned=self.epoch_num_learned + result.num_targets,
            trained_tokens=self.trained_tokens + result.num_tokens,
            learned_tokens=self.learned_tokens + result.num_targets,
            elapsed_s=self.elapsed_s + elapsed_s,
        )

    def begin_epoch(self) -> "Progress":
        """Advance to the next epoch."""
        return self._change(
            epoch=self.epoch + 1, step_in_epoch=0, epoch_loss_sum=0.0, epoch_num_learned=0
        )

    def follow_plan(self, fingerprint: str) -> "Progress":
        """Record the fingerprint of the current epoch's order."""
        return self._change(plan=fingerprint)

    def evaluate(
        self,
        loss: float,
        metrics: Mapping[str, float] | None = None,
        criterion: Criterion = Criterion(),  # noqa: B008 - immutable
    ) -> "Progress":
        """Record an evaluation at this step; `criterion` decides whether it is the best so far."""
        figures = {**(metrics or {}), "loss": loss}
        value = figures.get(criterion.metric, math.nan)
        is_better = math.isfinite(value) and (
            self.best_value is None or criterion.rank(value) < criterion.rank(self.best_value)
        )
        return self._change(
            eval_loss=loss,
            eval_metrics=dict(metrics or {}),
            evaluated_step=self.step,
            best_value=value if is_better else self.best_value,
            best_step=self.step if is_better else self.best_step,
            num_worse=0 if is_better else self.num_worse + 1,
        )

    def reset_patience(self) -> "Progress":
        """Reset the patience of early stopping, for a run extended after it stopped early."""
        return self._change(num_worse=0)

    @property
    def epoch_loss(self) -> float:
        """Mean loss of the epoch so far over its learned tokens, in nats."""
        return self.epoch_loss_sum / max(1, self.epoch_num_learned)

    @property
    def measured_loss(self) -> float | None:
        """Validation loss measured at exactly this step; None if the last one was earlier."""
        return self.eval_loss if self.evaluated_step == self.step else None

    @property
    def measured_metrics(self) -> dict[str, float]:
        """Other metrics measured at exactly this step; empty if the last ones were earlier."""
        return self.eval_metrics if self.evaluated_step == self.step else {}

    def measure(self, criterion: Criterion) -> float | None:
        """Return the value of a criterion at exactly this step; None if it was not measured."""
        if criterion.metric == "loss":
            return self.measured_loss
        return self.measured_metrics.get(criterion.metric)

    def summarise(self) -> dict[str, float]:
        """Return the figures of a checkpoint, for events, the API and the lineage.

        `eval_loss` is included only if it was measured at this step: an earlier evaluation is the
        loss of different weights.
        """
        figures: dict[str, float] = {
            "step": self.step,
            "epoch": self.epoch + 1,
            "loss": self.epoch_loss,
            "trained_tokens": self.trained_tokens,
        }
        loss = self.measured_loss
        if loss is not None and math.isfinite(loss):  # JSON has only finite numbers
            figures["eval_loss"] = loss
        for name, value in self.measured_metrics.items():
            if math.isfinite(value):
                figures[f"eval_{name}"] = value
        return figures

    def _change(self, **changes: Any) -> "Progress":
        return self.model_copy(update=changes)
