"""The passes of strategies in which every worker computes the whole model on its own rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from training.engine import StepBatches
from training.place import Place
from training.task import Metrics


class DataParallelEngine(ABC):
    """Passes with an engine that is called like its model, as DeepSpeed's is.

    Attributes that it lacks are the model's.
    """

    module: Any

    @abstractmethod
    def __call__(self, **inputs: torch.Tensor) -> Any:
        """Compute the model's outputs."""

    @abstractmethod
    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Tell whether the next backward pass is the last before a step."""

    @abstractmethod
    def backward(self, loss: torch.Tensor, *, scale_wrt_gas: bool) -> Any:
        """Add the gradients of a loss; they are averaged over the workers before a step."""

    def list_parameters(self) -> Iterator[tuple[str, torch.Size]]:
        """Return the parameters with their shapes, which a sharded one has in `ds_shape`."""
        for name, parameter in self.module.named_parameters():
            yield name, getattr(parameter, "ds_shape", parameter.shape)

    def measure_norm(self) -> torch.Tensor | None:
        """Return the norm of the gradients, which are the same on every worker."""
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        return torch.nn.utils.get_total_norm(gradients)

    def add_gradients(self, batches: StepBatches, place: Place, weight: float) -> torch.Tensor:
        """Add the gradients of this worker's micro batches; returns the sum of their losses."""
        loss_sum = torch.zeros((), dtype=torch.float64, device=place.device)
        last = batches.count(place.world_size) - 1
        share = batches.read_share(place.rank, place.world_size)
        for number, (_, batch) in enumerate(share):
            self.set_gradient_accumulation_boundary(number == last)
            loss = batches.objective.compute(self, batch).loss_sum
            self.backward(loss * (place.world_size / weight), scale_wrt_gas=False)
            loss_sum += loss.detach()
        return loss_sum

    def compute_loss(
        self, batches: StepBatches, place: Place, metrics: Metrics | None
    ) -> torch.Tensor:
        """Compute the losses of this worker's micro batches without gradients."""
        loss_sum = torch.zeros((), dtype=torch.float64, device=place.device)
        for rows, batch in batches.read_share(place.rank, place.world_size):
            result = batches.objective.compute(self, batch)
            loss_sum += result.loss_sum
            if metrics is not None and rows and result.predictions is not None:
                metrics.add(result.predictions, batch.labels)
        return loss_sum

    def compute_logits(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Compute the logits of the same inputs on every worker."""
        logits: torch.Tensor = self(**inputs).logits
        return logits
