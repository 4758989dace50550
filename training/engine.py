"""One optimizer step with the engine of a strategy.

The gradient of a step is the mean over the step's targets, such as learned tokens, across workers
and micro batches alike. Each micro batch contributes its summed loss divided by the weight of the
targets of the whole step. An engine averages gradients over the workers that compute different
micro batches, so it scales the sum by their number.
"""

import hashlib
import math
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from training.batching import BatchLayout, Step
from training.data.row_table import RowTable
from training.place import Place
from training.strategy import TrainingEngine
from training.task import MicroBatch, Objective


class NonFiniteLossError(RuntimeError):
    """The loss is infinite or not a number; the optimizer was not stepped."""


@dataclass(frozen=True)
class StepResult:
    """The result of one optimizer step, over all workers."""

    loss: float  # mean over the targets
    learning_rate: float
    grad_norm: float  # before clipping
    num_targets: int  # predictions that the loss counts, such as learned tokens
    num_tokens: int
    took_s: float
    was_skipped: bool  # the gradients were not finite; in fp16 the loss scale was lowered
    peak_memory_bytes: int  # of the worker that needs the most
    was_asked_to_stop: bool  # by any worker


@dataclass(frozen=True)
class StepBatches:
    """The micro batches of a step, each read when it is needed.

    `seed` is that of a training; None in an evaluation.
    """

    objective: Objective
    rows: RowTable
    step: Step
    layout: BatchLayout
    device: torch.device
    seed: str | None = None

    def count(self, num_shares: int) -> int:
        """Return the number of micro batches in each of `num_shares`; all have the same number."""
        return len(self.step.select_micro_batches(0, num_shares))

    def name_seeds(self, share: int, num_shares: int) -> list[str]:
        """Return the seed of each micro batch of a share: of the step, and its position in it."""
        numbers = range(self.count(num_shares))
        return [f"{self.seed}/{number * num_shares + share}" for number in numbers]

    def read_share(self, share: int, num_shares: int) -> Iterator[tuple[Sequence[int], MicroBatch]]:
        """Read the micro batches of a share, with the numbers of their rows; one may have no rows.

        In a training, torch's generator is seeded before each.
        """
        selected = self.step.select_micro_batches(share, num_shares)
        seeds = self.name_seeds(share, num_shares)
        for indices, seed in zip(selected, seeds, strict=True):
            if is_training := self.seed is not None:
                seed_generator(seed)
            rows = self.rows.read(indices)
            batch = self.objective.collate(rows, self.layout, is_training=is_training)
            yield indices, batch.to(self.device)


def count_parameters(engine: TrainingEngine) -> tuple[int, int]:
    """Count the parameters of the whole model, sharded or not, and those of them that are learned.

    Those of other workers' stages count as learned.
    """
    frozen = {name for name, one in engine.module.named_parameters() if not one.requires_grad}
    sizes = {name: shape.numel() for name, shape in engine.list_parameters()}
    return sum(sizes.values()), sum(size for name, size in sizes.items() if name not in frozen)


def take_step(
    engine: TrainingEngine,
    place: Place,
    objective: Objective,
    rows: RowTable,
    step: Step,
    layout: BatchLayout,
    learning_rate: float,
    *,
    seed: str,
    stop: bool = False,
) -> StepResult:
    """Take one optimizer step, which every worker must call together; any `stop` reaches all.

    Randomness (dropout, augmentation) is seeded by `seed` and the position of the micro batch in
    the step, so that a run repeats it after an interruption, also with another number of workers.

    Raises `NonFiniteLossError` before the optimizer has changed any weight.
    """
    began = time.monotonic()
    weight = objective.weigh_targets(rows, step.rows)
    for group in engine.optimizer.param_groups:
        group["lr"] = learning_rate
    batches = StepBatches(objective, rows, step, layout, place.device, seed)
    loss_sum = engine.add_gradients(batches, place, weight)
    shares = _gather([loss_sum, _measure_peak_memory(place.device), stop], place)
    mean_loss = float(shares[:, 0].sum()) / weight
    if not math.isfinite(mean_loss):
        raise NonFiniteLossError(
            f"the loss of step {engine.global_steps + 1} is {mean_loss}, on the rows of "
            f"{rows.describe_rows(step.rows)}; nothing was learned from them. Lower the learning "
            "rate, or look at these rows"
        )
    num_skipped = engine.skipped_steps
    grad_norm = engine.measure_norm()
    if grad_norm is not None and not math.isfinite(grad_norm):  # DeepSpeed would step anyway
        raise NonFiniteLossError(
            f"the gradients of step {engine.global_steps + 1} have the norm {float(grad_norm)}; "
            "nothing was learned from them. Lower the learning rate, or look at the rows"
        )
    engine.step()
    return StepResult(
        loss=mean_loss,
        learning_rate=learning_rate,
        grad_norm=float(engine.get_global_grad_norm() if grad_norm is None else grad_norm),
        num_targets=int(rows.num_targets[list(step.rows)].sum()),
        num_tokens=int(rows.lengths[list(step.rows)].sum()),
        took_s=time.monotonic() - began,
        was_skipped=engine.skipped_steps > num_skipped,
        peak_memory_bytes=int(shares[:, 1].max()),
        was_asked_to_stop=bool(shares[:, 2].any()),
    )


def sum_over_workers(value: float | torch.Tensor, place: Place) -> float:
    """Return the sum of a figure over all workers, which must call this together."""
    return float(_gather([value], place).sum())


def _gather(values: Sequence[float | torch.Tensor], place: Place) -> torch.Tensor:
    """Collect the figures of all workers; shape `[world_size, len(values)]`, float64."""
    mine = torch.stack(
        [torch.as_tensor(value, dtype=torch.float64, device=place.device) for value in values]
    )
    everyones = [torch.empty_like(mine) for _ in range(place.world_size)]
    dist.all_gather(everyones, mine)
    return torch.stack(everyones).cpu()


def _measure_peak_memory(device: torch.device) -> int:
    """Return this worker's peak memory in bytes: allocated on a GPU, resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts KiB


def seed_generator(text: str) -> None:
    """Seed torch's generators."""
    digest = hashlib.sha256(text.encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
