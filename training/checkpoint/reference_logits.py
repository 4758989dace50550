"""A model's logits in training, stored with its checkpoint to verify the exported model."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from training.model import cast_inputs
from training.place import Place
from training.task import Objective

PROBE_NAME = "probe.safetensors"
_NUM_TOKENS = 16
_STRIDE = 7919  # a prime, so that few vocabularies are a multiple


@dataclass(frozen=True)
class Probe:
    """Fixed inputs and the logits of the training engine for them.

    `inputs` are a model's by their names. `logits` are in fp32: `[tokens, vocabulary]` of the only
    row of a model that generates, else `[rows, classes]`.
    """

    inputs: Mapping[str, torch.Tensor]
    logits: torch.Tensor
    zero_parameters: frozenset[str]  # all zero in training; `name[expert]` of single experts

    def write(self, path: Path) -> None:
        """Write the probe as one safetensors file."""
        tensors = {**self.inputs, "logits": self.logits}
        zeros = json.dumps(sorted(self.zero_parameters))
        save_file(tensors, path, metadata={"zero_parameters": zeros})


def read_probe(checkpoint: Path) -> Probe | None:
    """Read a checkpoint's probe; None if it has none. Raises `ValueError` if it is damaged."""
    path = checkpoint / PROBE_NAME
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            zeros = json.loads(file.metadata()["zero_parameters"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            logits = tensors.pop("logits")
            if "input_ids" in tensors:  # earlier releases stored no mask
                tensors.setdefault("attention_mask", torch.ones_like(tensors["input_ids"]))
            return Probe(tensors, logits, frozenset(zeros))
    except (SafetensorError, KeyError, TypeError, ValueError) as exc:
        raise ValueError(f"{PROBE_NAME} of {checkpoint.name!r} is damaged: {exc}") from exc


def compute_probe(engine: Any, place: Place, objective: Objective) -> Probe:
    """Compute the probe of the model in training; all workers call this together."""
    inputs = objective.make_probe_inputs(engine.module.config)
    engine.eval()
    cast = cast_inputs(inputs, next(engine.module.parameters()).dtype)
    with torch.no_grad():
        logits = engine.compute_logits({name: one.to(place.device) for name, one in cast.items()})
    engine.train()
    if logits.dim() == 3 and len(logits) == 1:
        logits = logits[0]
    return Probe(inputs, logits.float().cpu().contiguous(), _find_zeros(engine, place))


def make_prompt(config: Any, num_rows: int = 1) -> dict[str, torch.Tensor]:
    """Return token ids that depend only on the size of the vocabulary, and their attention mask.

    Both have the shape `[num_rows, 16]`.
    """
    vocabulary = int(config.get_text_config().vocab_size)
    firsts = range(1, 1 + num_rows * _NUM_TOKENS, _NUM_TOKENS)
    rows = [spread_tokens(_NUM_TOKENS, vocabulary, first) for first in firsts]
    input_ids = torch.from_numpy(np.stack(rows))
    return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}


def spread_tokens(count: int, vocabulary: int, first: int = 1) -> npt.NDArray[np.int64]:
    """Make token ids that are spread over a vocabulary; `first` selects another sequence.

    The shape is `[count]`.
    """
    return np.arange(first, first + count, dtype=np.int64) * _STRIDE % vocabulary


def _find_zeros(engine: Any, place: Place) -> frozenset[str]:
    """Return the names of parameters, and of experts as `name[expert]`, that are all zero.

    Each worker checks its own shards, and the results are combined.
    """
    found = dict.fromkeys(_list_parts(engine), False)
    for name, parameter in engine.module.named_parameters():
        start, share = _select_held(parameter, place)
        found[name] = bool(share.any())
        shape = getattr(parameter, "ds_shape", parameter.shape)
        if len(shape) > 2:
            size = shape[1:].numel()
            for expert in range(shape[0]):
                first, last = (max(0, at * size - start) for at in (expert, expert + 1))
                found[f"{name}[{expert}]"] = bool(share[first:last].any())
    is_set = torch.tensor(list(found.values()), dtype=torch.int32, device=place.device)
    dist.all_reduce(is_set, op=dist.ReduceOp.MAX)
    return frozenset(name for name, value in zip(found, is_set.tolist(), strict=True) if not value)


def _list_parts(engine: Any) -> Iterator[str]:
    """Return the names of all parameters of the model and of their experts, as a probe has them."""
    for name, shape in engine.list_parameters():
        yield name
        yield from (f"{name}[{expert}]" for expert in range(shape[0] if len(shape) > 2 else 0))


def _select_held(parameter: Any, place: Place) -> tuple[int, torch.Tensor]:
    """Return the start of this worker's share of a parameter, and the share: flat, unpadded."""
    if not hasattr(parameter, "ds_tensor"):
        return 0, parameter.detach().flatten()
    share: torch.Tensor = parameter.ds_tensor.detach().flatten()
    start = place.rank * share.numel()
    return start, share[: max(0, parameter.ds_numel - start)]
