"""Checkpoint shards to a complete Hugging Face model directory.

At ZeRO-3 each rank's file holds one flat fp32 vector: for every trained parameter, in the order in
which the checkpoint lists them, that rank's slice of ceil(numel / world size) elements. A parameter
is its slices in the order of the ranks, cut to its size (the last slice may be padded). Below stage
3 rank 0's file holds the module as it is. Files are memory-mapped and one output shard is put
together at a time, so memory does not grow with the model.

Tied weights are one parameter under several names. As `save_pretrained` does, the file has only
the name that the architecture does not tie to another; loading ties it again.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from storage import durable
from training.checkpoint import find_shards
from training.model import find_weight_faults

DEFAULT_SHARD_BYTES = 2_000_000_000
_INDEX_NAME = "model.safetensors.index.json"

OnProgress = Callable[[int, int], None]


class ConsolidationError(RuntimeError):
    """The shards do not make up the model that its configuration describes."""


@dataclass(frozen=True)
class ShardedParameter:
    """A parameter of a ZeRO-3 checkpoint: its shape and where its slices begin in each rank."""

    name: str
    shape: torch.Size
    offset: int


class Weights(Protocol):
    """The weights of a checkpoint, read one tensor at a time."""

    aliases: Mapping[str, str]  # names of shared parameters, to the one that holds them
    parameter_names: frozenset[str]

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Read a whole parameter in a dtype, or a buffer in its own."""

    def find_shape(self, name: str) -> torch.Size | None:
        """The shape of a parameter or buffer, or None if there is none of this name."""


def open_weights(checkpoint: Path) -> Weights:
    """Open the weights of a checkpoint of any ZeRO stage; raises `ConsolidationError`."""
    whole = find_shards(checkpoint) / "mp_rank_00_model_states.pt"
    return WholeWeights(whole) if whole.is_file() else ShardedWeights(checkpoint)


class WholeWeights:
    """The weights of a checkpoint of ZeRO stage 0 to 2, where rank 0 saves the module as it is.

    They have the precision of training: in bf16 they are the fp32 master weights rounded, which is
    what is exported.
    """

    def __init__(self, file: Path) -> None:
        states = _load(file)
        self._module: Mapping[str, torch.Tensor] = states["module"]
        self.aliases: Mapping[str, str] = dict(states.get("shared_params") or {})
        self._buffers = frozenset(states["buffer_names"])
        # A shared parameter stands in the module under each of its names.
        self.parameter_names = frozenset(self._module) - self._buffers - set(self.aliases)

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Copy a parameter in a dtype, or a buffer in its own."""
        tensor = self._module[name]
        return tensor.clone() if name in self._buffers else tensor.to(dtype, copy=True)

    def find_shape(self, name: str) -> torch.Size | None:
        """The shape of a parameter or buffer, or None if there is none of this name."""
        return self._module[name].shape if name in self._module else None


class ShardedWeights:
    """The weights of one ZeRO-3 checkpoint, read one parameter at a time.

    Raises `ConsolidationError` if files are missing or do not fit together.
    """

    def __init__(self, checkpoint: Path) -> None:
        shards = find_shards(checkpoint)
        model_states = _load(shards / "zero_pp_rank_0_mp_rank_00_model_states.pt")
        self._ranks = [_load_flat_weights(file) for file in _list_optimizer_files(shards)]
        self._world_size = len(self._ranks)
        self.aliases: Mapping[str, str] = dict(model_states["shared_params"])
        # Buffers are not sharded: each rank's file has them whole.
        self.buffers: dict[str, torch.Tensor] = {
            name: model_states["module"][name]
            for name in model_states["buffer_names"]
            if name in model_states["module"]
        }
        self.parameters = {p.name: p for p in self._place(model_states["param_shapes"])}
        self.parameter_names = frozenset(self.parameters)

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Put one parameter together from its slices, or return a buffer in its own dtype."""
        if name in self.buffers:
            return self.buffers[name].clone()
        parameter = self.parameters[name]
        length = _slice_length(parameter.shape, self._world_size)
        whole = torch.empty(length * self._world_size, dtype=dtype)
        for rank, flat in enumerate(self._ranks):
            target = whole[rank * length : (rank + 1) * length]
            flat.copy_into(target, parameter.offset)
        return whole[: parameter.shape.numel()].view(parameter.shape).clone()

    def find_shape(self, name: str) -> torch.Size | None:
        """The shape of a parameter or buffer, or None if there is none of this name."""
        if name in self.buffers:
            return self.buffers[name].shape
        parameter = self.parameters.get(name)
        return parameter.shape if parameter else None

    def _place(self, groups: Iterable[Mapping[str, torch.Size]]) -> Iterator[ShardedParameter]:
        offset = 0
        for group in groups:
            for name, shape in group.items():
                yield ShardedParameter(name, shape, offset)
                offset += _slice_length(shape, self._world_size)
        held = {flat.length for flat in self._ranks}
        if held != {offset}:
            raise ConsolidationError(
                f"the checkpoint lists {offset} elements per worker, its files hold {sorted(held)}"
            )


def consolidate_checkpoint(
    checkpoint: Path,
    base_model: str,
    output: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    on_progress: OnProgress | None = None,
) -> None:
    """Write the model of a checkpoint as a Hugging Face directory that loads by itself.

    Configuration, tokenizer, chat template and generation settings come from `base_model`. The
    result is checked before this returns: names and shapes as the architecture wants them, nothing
    non-finite, and it loads with no key missing or unexpected. `on_progress` is called with the
    tensors done and their number. Raises `ConsolidationError` if the result is not to be trusted;
    `output` then does not exist.
    """
    if output.exists():
        raise ConsolidationError(f"{str(output)!r} is there already; it is left as it is")
    building = output.with_name(f".{output.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    config = AutoConfig.from_pretrained(base_model, trust_remote_code=False)
    config.dtype = dtype
    weights = open_weights(checkpoint)
    names = _match_names(weights, config)
    _write_weights(weights, names, building, dtype, shard_bytes, on_progress)
    config.save_pretrained(building)
    _copy_companions(base_model, building)
    check_loads(building)
    building.rename(output)
    durable.fsync_directory(output.parent)


def check_loads(directory: Path) -> None:
    """Load a model directory; raises `ConsolidationError` for any key that does not fit."""
    _, info = AutoModelForCausalLM.from_pretrained(
        directory, output_loading_info=True, local_files_only=True, use_safetensors=True
    )
    if faults := find_weight_faults(info):
        raise ConsolidationError(f"the consolidated model does not load as a whole: {faults}")


def _match_names(weights: Weights, config: Any) -> dict[str, str]:
    """Map each name that the file must have to the parameter of the checkpoint that holds it.

    `_tied_weights_keys` of an architecture names what loading ties to something else.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    tied = set(model.all_tied_weights_keys)
    names: dict[str, str] = {}
    for name, shape in expected.items():
        if name in tied:
            continue
        source = name if weights.find_shape(name) is not None else weights.aliases.get(name, name)
        found = weights.find_shape(source)
        if found is None:
            raise ConsolidationError(f"the checkpoint has no weight {name!r}")
        if found != shape:
            raise ConsolidationError(
                f"{name!r} has the shape {tuple(found)} in the checkpoint, {tuple(shape)} expected"
            )
        names[name] = source
    if unused := weights.parameter_names - set(names.values()):
        raise ConsolidationError(f"the architecture has no place for {sorted(unused)}")
    return names


def _write_weights(
    weights: Weights,
    names: Mapping[str, str],
    directory: Path,
    dtype: torch.dtype,
    shard_bytes: int,
    on_progress: OnProgress | None,
) -> None:
    plan = _plan_files(weights, names, dtype, shard_bytes)
    weight_map: dict[str, str] = {}
    total_bytes = done = 0
    for number, group in enumerate(plan, 1):
        file = "model.safetensors"
        if len(plan) > 1:
            file = f"model-{number:05d}-of-{len(plan):05d}.safetensors"
        tensors: dict[str, torch.Tensor] = {}
        for name in group:
            tensors[name] = weights.read(names[name], dtype)
            _check_values(name, tensors[name])
            total_bytes += tensors[name].nbytes
            weight_map[name] = file
            done += 1
            if on_progress:
                on_progress(done, len(names))
        save_file(tensors, directory / file, metadata={"format": "pt"})
    if len(plan) > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        (directory / _INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n")


def _plan_files(
    weights: Weights, names: Mapping[str, str], dtype: torch.dtype, shard_bytes: int
) -> list[list[str]]:
    """Fill files in order of names, each up to `shard_bytes` or one tensor."""
    files: list[list[str]] = []
    room = 0
    for name, source in names.items():
        shape = weights.find_shape(source)
        assert shape is not None
        size = shape.numel() * dtype.itemsize
        if not files or size > room:
            files.append([])
            room = shard_bytes
        files[-1].append(name)
        room -= size
    return files


def _check_values(name: str, tensor: torch.Tensor) -> None:
    if not bool(torch.isfinite(tensor).all()):
        raise ConsolidationError(f"{name!r} has values that are not finite")


def _copy_companions(base_model: str, directory: Path) -> None:
    """Save tokenizer, chat template and generation settings beside the weights."""
    AutoTokenizer.from_pretrained(base_model, trust_remote_code=False).save_pretrained(directory)
    try:
        generation = GenerationConfig.from_pretrained(base_model)
    except OSError:  # the base model has none; transformers then uses its own defaults
        return
    generation.save_pretrained(directory)


class _FlatWeights:
    """One rank's fp32 weights: tensors that follow one another as if they were one."""

    def __init__(self, pieces: list[torch.Tensor]) -> None:
        self._pieces = [piece.flatten() for piece in pieces]
        self.length = sum(piece.numel() for piece in pieces)

    def copy_into(self, target: torch.Tensor, offset: int) -> None:
        """Copy `target.numel()` elements from `offset` on, casting to the target's dtype."""
        begin = 0
        for piece in self._pieces:
            end = begin + piece.numel()
            start, stop = max(offset, begin), min(offset + target.numel(), end)
            if start < stop:
                target[start - offset : stop - offset] = piece[start - begin : stop - begin]
            begin = end


def _slice_length(shape: torch.Size, world_size: int) -> int:
    return -(-shape.numel() // world_size)


def _load(file: Path) -> Any:
    # Not weights_only: DeepSpeed pickles classes of its own here, and the file is one that this
    # run's own workers wrote; models that come from elsewhere are safetensors only.
    try:
        return torch.load(file, map_location="cpu", mmap=True, weights_only=False)
    except FileNotFoundError:
        raise ConsolidationError(f"the checkpoint lacks {file.name!r}") from None


def _load_flat_weights(file: Path) -> _FlatWeights:
    return _FlatWeights(_load(file)["optimizer_state_dict"]["fp32_flat_groups"])


def _list_optimizer_files(shards: Path) -> list[Path]:
    """One file per rank, in the order of the ranks; raises if their number is not the world's."""
    files = {_rank_of(file): file for file in shards.glob("*_optim_states.pt")}
    if not files or sorted(files) != list(range(len(files))):
        raise ConsolidationError(f"optimizer states of ranks {sorted(files)} found; some are gone")
    world_size = _load(files[0])["optimizer_state_dict"]["partition_count"]
    if world_size != len(files):
        raise ConsolidationError(f"{world_size} workers wrote this, {len(files)} files are here")
    return [files[rank] for rank in range(world_size)]


def _rank_of(file: Path) -> int:
    return int(file.name.split("zero_pp_rank_")[1].split("_")[0])
