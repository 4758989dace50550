"""Loss per token on validation rows, which are not learned."""

from typing import Any

import torch

from training.batching import BatchPlan, plan_evaluation
from training.data.token_table import TokenTable
from training.engine import Place, read_micro_batch, sum_over_workers
from training.model import sum_loss


def evaluate(
    engine: Any,
    place: Place,
    rows: TokenTable,
    plan: BatchPlan,
) -> float:
    """Return the mean loss over the learned tokens of all rows, in nats.

    Its exponential is the perplexity. Every worker must call this together.
    """
    rounds = plan_evaluation(rows.lengths, plan)
    loss_sum = torch.zeros((), dtype=torch.float64, device=place.device)
    engine.eval()
    with torch.no_grad():
        for step in rounds:
            for micro_batch in step.select_micro_batches(place.rank, place.world_size):
                batch = read_micro_batch(rows, micro_batch, place, plan.layout)
                loss_sum += sum_loss(engine, batch)
    engine.train()
    return sum_over_workers(loss_sum, place) / int(rows.num_learned.sum())
