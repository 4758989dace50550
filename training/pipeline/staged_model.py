"""The layers of one stage of a pipeline, in DeepSpeed's module. Only workers import this."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

from training.engine import seed_generator
from training.export.zero_shards import name_stage
from training.losses.next_token import find_learned, sum_cross_entropy
from training.pipeline.architecture import find_family
from training.pipeline.layers import DecoderLayer, Layer, PositionLayer, project
from training.pipeline.partition import choose_bounds, merge_ends
from training.pipeline.weights import BaseWeights
from training.place import Place
from training.spec import TrainingSpec

_TIED = "embedding"
_NUM_AFTER = 2  # layers after the decoder layers: norm and head
_NUM_TIMINGS = 3
_TIMED_TOKENS = 256


class StagedModel(PipelineModule):  # type: ignore[misc]
    """The layers of this worker's stage; its parameters have the names of the whole model.

    The last stage returns the loss of a micro batch: the head is applied only at positions that
    predict a learned token. (A loss beyond the module, DeepSpeed's `loss_fn`, would lose the head's
    gradients in bf16: they are cleared once the backward pass reaches the module's output.) Dropout
    is seeded for each layer of each micro batch, so it does not depend on the cut.
    """

    def __init__(
        self, spec: TrainingSpec, weights: BaseWeights, layers: list[Any], bounds: list[int]
    ) -> None:
        self.bounds = bounds
        with redirect_stdout(StringIO()):  # it prints its settings
            super().__init__(layers, num_stages=spec.num_stages, dynamic_shape=True)
        self.config = weights.model.config
        self.seeds: deque[str] = deque()  # of the micro batches of a step
        self.labels: torch.Tensor | None = None  # of the micro batch that is computed next
        self.loss_scale = 1.0
        self.loss_sum = torch.zeros((), dtype=torch.float64)

    def _partition_layers(self, method: str) -> None:  # noqa: ARG002 - DeepSpeed's
        self.parts = self.bounds
        self._set_bounds(self.bounds[self.stage_id], self.bounds[self.stage_id + 1])

    def _synchronize_tied_weights(self) -> None:
        """Send nothing: both stages have read the same weight, and compute the same updates."""

    @property
    def has_head(self) -> bool:
        """Whether this is the last stage."""
        return bool(self.stage_id == self.num_stages - 1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute the stage's layers: hidden states, or on the last stage the loss.

        The loss is scaled. Without labels, the last stage returns logits.
        """
        seed = self.seeds.popleft() if self.training else None
        layers = self.forward_funcs[:-1] if self.has_head else self.forward_funcs
        for index, layer in enumerate(layers, self._local_start):
            if seed is not None:
                seed_generator(f"{seed}/{index}")
            hidden = layer(hidden)
        return self._apply_head(hidden) if self.has_head else hidden

    def _apply_head(self, hidden: torch.Tensor) -> torch.Tensor:
        head = self.forward_funcs[-1]
        if self.labels is None:
            logits: torch.Tensor = head(hidden)
            return logits
        learned = find_learned(self.labels)
        loss = sum_cross_entropy(head(hidden[learned]), self.labels[learned])
        self.loss_sum += loss.detach()
        return loss * self.loss_scale

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Return the stage's parameters by their names in the whole model."""
        if not recurse:  # a module's own parameters: there are none
            return
        for layer in self.modules():
            if isinstance(layer, Layer):
                yield from layer.inner.named_parameters(
                    f"{prefix}{layer.name}", remove_duplicate=remove_duplicate
                )

    def save_state_dict(self, save_dir: str, *_: Any, **__: Any) -> None:
        """Write the weights of the stage, on its first replica."""
        if self._grid.data_parallel_id == 0:
            weights = {name: one.detach() for name, one in self.named_parameters()}
            path = Path(save_dir) / name_stage(self.stage_id)
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save({"weights": weights, "bounds": self.bounds}, path)

    def load_state_dir(self, load_dir: str, *_: Any, **__: Any) -> None:
        """Read the weights of the stage."""
        weights = read_stage(Path(load_dir), self.stage_id)["weights"]
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(weights[name])


def read_stage(shards: Path, stage: int) -> dict[str, Any]:
    """Map the file of a stage into memory: its `weights`, and the `bounds` of all stages."""
    stored: dict[str, Any] = torch.load(
        shards / name_stage(stage), map_location="cpu", mmap=True, weights_only=True
    )
    return stored


def build_layers(spec: TrainingSpec, weights: BaseWeights) -> list[Any]:
    """Describe all layers of a model in order; a worker builds those of its stage."""
    model, family = weights.model, find_family(weights.model.config)
    head = model.get_output_embeddings()
    is_tied = head.weight is model.get_input_embeddings().weight
    (head_name,) = (name for name, module in model.named_modules() if module is head)
    tied: dict[str, Any] = {"tied_weight_attr": "inner.weight"}

    layers: list[Any] = []
    if is_tied:
        layers.append(TiedLayerSpec(_TIED, Layer, weights, family.embedding, **tied))
    else:
        layers.append(LayerSpec(Layer, weights, family.embedding))
    if family.positions is not None:
        dropout = model.config.embd_pdrop
        layers.append(LayerSpec(PositionLayer, weights, family.positions, dropout))
    layers += [
        LayerSpec(
            DecoderLayer,
            weights,
            f"{family.blocks}.{index}",
            index,
            family.rotary,
            recomputes=spec.activation_checkpointing,
        )
        for index in range(model.config.num_hidden_layers)
    ]
    layers.append(LayerSpec(Layer, weights, family.norm))
    if is_tied:
        tied["forward_fn"] = project
        layers.append(TiedLayerSpec(_TIED, Layer, weights, family.embedding, **tied))
    else:
        layers.append(LayerSpec(Layer, weights, head_name))
    return layers


def choose_stages(
    spec: TrainingSpec, weights: BaseWeights, layers: Sequence[Any], place: Place
) -> list[int]:
    """Cut layers into stages; the same on all workers, which call this together."""
    num_decoders = weights.model.config.num_hidden_layers
    num_before = len(layers) - num_decoders - _NUM_AFTER
    if spec.pipeline_partition == "uniform":
        costs = [1.0] * num_decoders
    elif spec.pipeline_partition == "parameters":
        sizes = [float(_count_parameters(weights, layer)) for layer in layers]
        costs = merge_ends(sizes, num_before, _NUM_AFTER)
    else:
        times = _measure_times(layers, weights, place) if place.rank == 0 else []
        shared = [times]
        dist.broadcast_object_list(shared, src=0, device=place.device)
        costs = merge_ends(shared[0], num_before, _NUM_AFTER)
    inner = choose_bounds(costs, spec.num_stages)
    return [0, *(num_before + bound for bound in inner[1:-1]), len(layers)]


def _count_parameters(weights: BaseWeights, layer: Any) -> int:
    module = weights.model.get_submodule(layer.module_args[1])
    return sum(parameter.numel() for parameter in module.parameters())


def _measure_times(layers: Sequence[Any], weights: BaseWeights, place: Place) -> list[float]:
    """Return the seconds of each layer's forward pass over one row, building one at a time."""
    limit = getattr(weights.model.config, "max_position_embeddings", _TIMED_TOKENS)
    hidden = torch.zeros((1, min(_TIMED_TOKENS, limit)), dtype=torch.int64, device=place.device)
    times = []
    for layer in layers:
        module = layer.build().eval().to(place.device)
        compute = getattr(layer, "forward_fn", None) or Layer.__call__
        with torch.no_grad():
            tries = [_measure_time(compute, module, hidden, place) for _ in range(_NUM_TIMINGS)]
        times.append(min(took_s for took_s, _ in tries))
        hidden = tries[0][1]
    return times


def _measure_time(
    compute: Any, module: Layer, hidden: torch.Tensor, place: Place
) -> tuple[float, torch.Tensor]:
    began = time.perf_counter()
    output = compute(module, hidden)
    if place.device.type == "cuda":
        torch.cuda.synchronize(place.device)
    return time.perf_counter() - began, output
