"""The loss and the metrics of a task on validation rows, which are not learned."""

from typing import NamedTuple

import torch

from training.batching import BatchPlan, plan_evaluation
from training.data.row_table import RowTable
from training.engine import StepBatches, sum_over_workers
from training.place import Place
from training.strategy import TrainingEngine
from training.task import ConfusionMatrix, Objective


class Evaluation(NamedTuple):
    """The mean loss over all targets, the metrics of the task by their names, and its classes."""

    loss: float
    metrics: dict[str, float]
    confusion: ConfusionMatrix | None = None


def evaluate(
    engine: TrainingEngine, place: Place, objective: Objective, rows: RowTable, plan: BatchPlan
) -> Evaluation:
    """Evaluate all rows; every worker must call this together.

    The loss of a language model is in nats per learned token; its exponential is the perplexity.
    """
    rounds = plan_evaluation(rows.lengths, plan)
    rows.begin(0, rounds.locate(0), plan)
    loss_sum = torch.zeros((), dtype=torch.float64, device=place.device)
    metrics = objective.open_metrics(place.device)
    engine.eval()
    with torch.no_grad():
        for step in rounds:
            batches = StepBatches(objective, rows, step, plan.layout, place.device)
            loss_sum += engine.compute_loss(batches, place, metrics)
    engine.train()
    rows.end()
    weight = objective.weigh_targets(rows, range(len(rows)))
    loss = sum_over_workers(loss_sum, place) / weight
    if metrics is None:
        return Evaluation(loss, {})
    return Evaluation(loss, metrics.compute(), metrics.count_predictions())
