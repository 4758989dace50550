"""DeepSpeed's pipeline engine, with the passes of a step. Only workers import this.

A step runs DeepSpeed's schedule (1F1B: each stage alternates between a forward and a backward pass,
Narayanan et al. 2019) up to the reduction of gradients. The optimizer's step is separate, because
the loss must be known before it. DeepSpeed divides a loss by its own number of accumulated micro
batches, which is configured as 1, and averages gradients over replicas.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.schedule import InferenceSchedule, OptimizerStep, TrainSchedule

from training.engine import StepBatches
from training.pipeline.staged_model import StagedModel
from training.place import Place
from training.task import Metrics


class GradientSchedule(TrainSchedule):  # type: ignore[misc]
    """The schedule of a step without the optimizer's."""

    def steps(self) -> Iterator[list[Any]]:
        """Return the instructions of this stage, grouped by what stages do at the same time."""
        for instructions in super().steps():
            yield [one for one in instructions if not isinstance(one, OptimizerStep)]


class StagedEngine:
    """One stage of a pipeline in training. Attributes that it lacks are DeepSpeed's engine's."""

    def __init__(self, engine: Any, model: StagedModel, shapes: Mapping[str, torch.Size]) -> None:
        """`shapes` are those of all parameters of the model by their names."""
        self._engine = engine
        self._model = model
        self._shapes = shapes
        self._replica = int(model._grid.get_data_parallel_id())
        self._num_replicas = int(model._grid.data_parallel_size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_engine"], name)

    def list_parameters(self) -> Iterator[tuple[str, torch.Size]]:
        """Return the parameters of the whole model, also those of other stages."""
        yield from self._shapes.items()

    def add_gradients(self, batches: StepBatches, place: Place, weight: float) -> torch.Tensor:  # noqa: ARG002
        """Run the passes of this replica's micro batches; the last stage returns their losses."""
        self._model.seeds.extend(batches.name_seeds(self._replica, self._num_replicas))
        self._model.loss_scale = self._num_replicas / weight
        schedule = GradientSchedule(
            batches.count(self._num_replicas), self._model.num_stages, self._model.stage_id
        )
        return self._run(schedule, self._read(batches))

    def compute_loss(
        self,
        batches: StepBatches,
        place: Place,  # noqa: ARG002
        metrics: Metrics | None,
    ) -> torch.Tensor:
        """Run the forward passes of this replica's micro batches."""
        assert metrics is None
        return self._run(self._plan_forward(batches.count(self._num_replicas)), self._read(batches))

    def compute_logits(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Compute logits on the last stage, and send them to all workers."""
        assert bool(inputs["attention_mask"].all()), "rows of different lengths"
        input_ids = inputs["input_ids"]
        self._run(self._plan_forward(1), self._load([(input_ids, None)]))
        vocabulary = self._model.config.get_text_config().vocab_size
        logits = torch.empty((*input_ids.shape, vocabulary), device=input_ids.device)
        if self._model.has_head:
            logits.copy_(self._engine.fwd_outputs[0])
        last_worker = dist.get_world_size() - 1  # in the last stage; ranks count stage by stage
        dist.broadcast(logits, last_worker)
        return logits

    def measure_norm(self) -> None:
        """Return None: DeepSpeed measures the norm over all stages as it steps."""

    def step(self) -> None:
        """Clip the gradients, take an optimizer step, and forget them."""
        self._engine._exec_optimizer_step()

    def _plan_forward(self, num_batches: int) -> Any:
        return InferenceSchedule(num_batches, self._model.num_stages, self._model.stage_id)

    def _read(self, batches: StepBatches) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        share = batches.read_share(self._replica, self._num_replicas)
        return self._load((batch.inputs["input_ids"], batch.labels) for _, batch in share)

    def _load(
        self, batches: Iterable[tuple[torch.Tensor, torch.Tensor | None]]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Let DeepSpeed load micro batches, each right before a stage computes it."""
        for input_ids, labels in batches:
            self._model.labels = labels
            yield input_ids, input_ids  # the second are DeepSpeed's labels, which are not used

    def _run(
        self, schedule: Any, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """Execute a schedule; returns the sum of the losses, 0 except in the last stage."""
        engine = self._engine
        self._model.loss_sum = torch.zeros((), dtype=torch.float64, device=engine.device)
        engine.total_loss = None
        engine._compute_loss = False  # the module does
        engine.set_dataiterator(batches)
        engine._exec_schedule(schedule)
        return self._model.loss_sum
