"""The loss and the metrics of a task on validation rows, which are not learned."""

from typing import Any, NamedTuple

import torch

from training.batching import BatchPlan, plan_evaluation
from training.data.row_table import RowTable
from training.engine import read_micro_batch, sum_over_workers
from training.place import Place
from training.task import Objective


class Evaluation(NamedTuple):
    """The mean loss over all targets, and the metrics of the task by their names."""

    loss: float
    metrics: dict[str, float]


def evaluate(
    engine: Any, place: Place, objective: Objective, rows: RowTable, plan: BatchPlan
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
            for micro_batch in step.select_micro_batches(place.rank, place.world_size):
                batch = read_micro_batch(
                    objective, rows, micro_batch, place, plan.layout, is_training=False
                )
                result = objective.compute(engine, batch)
                loss_sum += result.loss_sum
                if metrics is not None and micro_batch and result.predictions is not None:
                    metrics.add(result.predictions, batch.labels)
    engine.train()
    rows.end()
    weight = objective.weigh_targets(rows, range(len(rows)))
    loss = sum_over_workers(loss_sum, place) / weight
    return Evaluation(loss, metrics.compute() if metrics is not None else {})
