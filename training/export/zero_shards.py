"""Reading the weights of a DeepSpeed checkpoint of any ZeRO stage.

A tensor consists of consecutive flat pieces, memory-mapped from their files: nothing is read before
it is copied out.

Stage 3: each rank's file contains flat fp32 vectors. They contain, for every trained parameter in
the order in which the checkpoint lists them, that rank's slice of ceil(numel / world size)
elements. A parameter is its slices in the order of the ranks; the last slice may be padded. Frozen
parameters have their own slices in each rank's model states.

Stages 0 to 2: rank 0's file contains the whole module in the precision of training. The fp32 master
weights of stages 1 and 2 are in the optimizer states: each rank has a range of every parameter
group, which may begin and end within a parameter. Stage 0 stores master weights without the names
of their parameters, so the module's own weights are used.

A pipeline: a file for each stage has its weights in the precision of training, and the master
weights are in the optimizer states of the stage's replicas, as in stages 1 and 2. A tied weight is
in the files of two stages.

Universal (Lian et al. 2024, arXiv 2406.18820): a folder for each parameter, with its fp32 weights.
"""

import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

WHOLE_STATES = "mp_rank_00_model_states.pt"
"""The file of a module that is not sharded: stages 0 to 2, and the strategy `ddp`."""
_SHARDED_STATES = "zero_pp_rank_0_mp_rank_00_model_states.pt"


def name_stage(stage: int) -> str:
    """Return the name of the file with the weights of a stage of a pipeline."""
    return f"stage_{stage:04d}_weights.pt"


class ShardsError(RuntimeError):
    """The files of a checkpoint are damaged, missing, or inconsistent."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint: consecutive flat pieces, of which the last may be padded."""

    shape: torch.Size
    pieces: tuple[torch.Tensor, ...]
    is_buffer: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the stored elements."""
        return self.pieces[0].dtype

    def select(self, index: int) -> "StoredTensor":
        """Select one entry along the first dimension, which is kept with size 1."""
        shape = torch.Size((1, *self.shape[1:]))
        size = shape.numel()
        return StoredTensor(shape, tuple(_narrow(self.pieces, index * size, size)), self.is_buffer)

    @torch.no_grad()
    def copy_into(self, target: torch.Tensor, start: int = 0) -> None:
        """Copy the flat elements from `start` on into `target` (1-D), in the target's dtype."""
        begin = 0
        stop = start + target.numel()
        for piece in self.pieces:
            end = begin + piece.numel()
            first, last = max(start, begin), min(stop, end)
            if first < last:
                target[first - start : last - start] = piece[first - begin : last - begin]
            begin = end


@dataclass(frozen=True)
class StoredWeights:
    """All weights of a checkpoint by their names in the module."""

    tensors: Mapping[str, StoredTensor]
    aliases: Mapping[str, str]  # names of shared parameters, to the stored name

    def find(self, name: str) -> tuple[str, StoredTensor] | None:
        """Find a tensor by its own name, or by the name that its shared tensor is stored under."""
        for known_as in (name, self.aliases.get(name, name)):
            if known_as in self.tensors:
                return known_as, self.tensors[known_as]
        return None


def open_weights(shards: Path, *, in_fp32: bool = False) -> StoredWeights:
    """Open the weights of a checkpoint's shards; raises `ShardsError` that names the file.

    `in_fp32` selects the master weights where they exist: below stage 3, the module's own weights
    are the master weights rounded to the precision of training.
    """
    try:
        if (shards / "zero").is_dir():
            return _open_universal(shards)
        if (shards / name_stage(0)).is_file():
            return _open_stages(shards, in_fp32=in_fp32)
        if (shards / WHOLE_STATES).is_file():
            return _open_whole(shards, in_fp32=in_fp32)
        return _open_sharded(shards)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as exc:
        raise ShardsError(
            f"{shards.name!r} is not what DeepSpeed writes: {type(exc).__name__}: {exc}"
        ) from exc


def _open_whole(shards: Path, *, in_fp32: bool) -> StoredWeights:
    states = _load(shards / WHOLE_STATES)
    tensors = _read_module(states)
    if in_fp32:
        for name, pieces in _find_masters(shards, 0).items():
            tensors[name] = _check_size(name, StoredTensor(tensors[name].shape, tuple(pieces)))
    return StoredWeights(tensors, _find_shared(states))


def _open_stages(shards: Path, *, in_fp32: bool) -> StoredWeights:
    tensors: dict[str, StoredTensor] = {}
    num_stages = len(_load(shards / name_stage(0))["bounds"]) - 1
    for stage in range(num_stages):
        masters = _find_masters(shards, stage) if in_fp32 else {}
        for name, tensor in _load(shards / name_stage(stage))["weights"].items():
            pieces = tuple(masters.get(name) or [tensor.flatten()])
            tensors.setdefault(name, _check_size(name, StoredTensor(tensor.shape, pieces)))
    return StoredWeights(tensors, {})


def _find_masters(shards: Path, stage: int) -> dict[str, list[torch.Tensor]]:
    """Find the fp32 pieces of every parameter at ZeRO stages 1 and 2; none at ZeRO stage 0.

    `stage` is that of a pipeline.
    """
    pieces: dict[str, list[torch.Tensor]] = defaultdict(list)
    has_states = any(shards.glob("*_optim_states.pt"))
    files = _list_rank_files(shards, "optim_states", stage=stage) if has_states else []
    for state in (_load(file)["optimizer_state_dict"] for file in files):
        mappings = state.get("param_slice_mappings") or []
        groups = state.get("single_partition_of_fp32_groups") or []
        for mapping, flat in zip(mappings, groups, strict=True):
            for name, fragment in mapping.items():
                pieces[name].append(flat.narrow(0, fragment.start, fragment.numel))
    return pieces


def _open_sharded(shards: Path) -> StoredWeights:
    states = _load(shards / _SHARDED_STATES)
    ranks = [
        [group.flatten() for group in _load(file)["optimizer_state_dict"]["fp32_flat_groups"]]
        for file in _list_rank_files(shards, "optim_states")
    ]
    tensors = _read_buffers(states)
    tensors.update(_place(_list_shapes(states), ranks))
    if states.get("frozen_param_shapes"):
        tensors.update(_read_frozen(shards, states["frozen_param_shapes"], len(ranks)))
    return StoredWeights(tensors, _read_aliases(states))


def _place(
    shapes: Iterable[tuple[str, torch.Size]], ranks: list[list[torch.Tensor]]
) -> Iterator[tuple[str, StoredTensor]]:
    """Find each parameter's slices in the flat vectors of all ranks."""
    offset = 0
    for name, shape in shapes:
        length = -(-shape.numel() // len(ranks))
        slices = (_narrow(groups, offset, length) for groups in ranks)
        yield name, _check_size(name, StoredTensor(shape, tuple(chain.from_iterable(slices))))
        offset += length
    held = {sum(group.numel() for group in groups) for groups in ranks}
    if held != {offset}:
        raise ShardsError(
            f"the checkpoint lists {offset} elements per worker, its files hold {sorted(held)}"
        )


def _narrow(groups: Sequence[torch.Tensor], offset: int, length: int) -> Iterator[torch.Tensor]:
    """Select a range of consecutive tensors as if they were one tensor."""
    begin = 0
    for group in groups:
        first, last = max(offset, begin), min(offset + length, begin + group.numel())
        if first < last:
            yield group[first - begin : last - begin]
        begin += group.numel()


def _read_frozen(
    shards: Path, shapes: Mapping[str, torch.Size], world_size: int
) -> Iterator[tuple[str, StoredTensor]]:
    files = _list_rank_files(shards, "model_states", world_size)
    fragments = [_load(file)["frozen_param_fragments"] for file in files]
    for name, shape in shapes.items():
        pieces = tuple(of_rank[name].flatten() for of_rank in fragments)
        yield name, _check_size(name, StoredTensor(shape, pieces))


def _open_universal(shards: Path) -> StoredWeights:
    """Open a universal checkpoint, converted from any stage."""
    if (shards / WHOLE_STATES).is_file():
        states = _load(shards / WHOLE_STATES)
        tensors, aliases = _read_module(states), _find_shared(states)
    else:
        states = _load(shards / _SHARDED_STATES)
        aliases = _read_aliases(states)
        tensors = _read_buffers(states)
        if frozen := states.get("frozen_param_shapes"):
            world_size = len(list(shards.glob("zero_pp_rank_*_model_states.pt")))
            tensors.update(_read_frozen(shards, frozen, world_size))
    for name, shape in _list_shapes(states):
        stored = _load(shards / "zero" / name / "fp32.pt")
        weights = stored["param"] if isinstance(stored, dict) else stored
        tensors[name] = _check_size(name, StoredTensor(shape, (weights.flatten(),)))
    return StoredWeights(tensors, aliases)


def _read_module(states: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """Read the module of stages 0 to 2, where it is not sharded."""
    buffers, aliases = set(states["buffer_names"]), _find_shared(states)
    return {
        name: StoredTensor(tensor.shape, (tensor.flatten(),), is_buffer=name in buffers)
        for name, tensor in states["module"].items()
        if name not in aliases  # a shared parameter is in the module under each of its names
    }


def _find_shared(states: Mapping[str, Any]) -> dict[str, str]:
    """Find the names that share a tensor in a whole module, which stage 0 does not list."""
    aliases = _read_aliases(states)
    first: dict[Any, str] = {}
    for name, tensor in states["module"].items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if name not in aliases and tensor.numel() and first.setdefault(place, name) != name:
            aliases[name] = first[place]
    return aliases


def _read_aliases(states: Mapping[str, Any]) -> dict[str, str]:
    return dict(states.get("shared_params") or {})


def _list_shapes(states: Mapping[str, Any]) -> Iterator[tuple[str, torch.Size]]:
    """List the trained parameters of all groups with their shapes, in order."""
    return chain.from_iterable(group.items() for group in states["param_shapes"])


def _read_buffers(states: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """Read the buffers, which are not sharded: each rank's file has all of them."""
    module = states["module"]
    return {
        name: StoredTensor(module[name].shape, (module[name].flatten(),), is_buffer=True)
        for name in states["buffer_names"]
        if name in module
    }


def _check_size(name: str, stored: StoredTensor) -> StoredTensor:
    found = sum(piece.numel() for piece in stored.pieces)
    if found < stored.shape.numel():
        raise ShardsError(
            f"{name!r} has {found} elements in the checkpoint, {stored.shape.numel()} expected"
        )
    return stored


def _load(file: Path) -> Any:
    """Map a file of shards into memory.

    `weights_only` is off, because DeepSpeed pickles its own classes here. The file was written by a
    training on this storage; models from elsewhere are accepted as safetensors only.
    """
    try:
        return torch.load(file, map_location="cpu", mmap=True, weights_only=False)
    except FileNotFoundError:
        raise ShardsError(f"the checkpoint lacks {file.name!r}") from None
    except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as exc:
        reason = str(exc).partition("\n")[0].replace(str(file.parent), file.parent.name)
        raise ShardsError(f"{file.name!r} cannot be read, it is damaged: {reason}") from exc


def _list_rank_files(
    shards: Path, kind: str, world_size: int | None = None, *, stage: int = 0
) -> list[Path]:
    """Return one file per rank, in order; raises `ShardsError` unless every rank has exactly one.

    Without `world_size`, it is read from the file of rank 0. `stage` is that of a pipeline, whose
    ranks are its replicas.
    """
    pattern = f"*zero_pp_rank_*_mp_rank_{stage:02d}_{kind}.pt"
    files = {_rank_of(file): file for file in shards.glob(pattern)}
    if world_size is None and 0 in files:
        count = _load(files[0])["optimizer_state_dict"]["partition_count"]
        world_size = max(count) if isinstance(count, list) else count
    if gone := sorted(set(range(world_size or 1)) - set(files)):
        raise ShardsError(
            f"{world_size or 'several'} workers wrote this checkpoint, and the {kind} of rank "
            f"{', '.join(map(str, gone))} are missing"
        )
    if len(files) != world_size:
        raise ShardsError(f"{world_size} workers wrote this, but {len(files)} have {kind} here")
    return [files[rank] for rank in range(len(files))]


def _rank_of(file: Path) -> int:
    return int(file.name.split("zero_pp_rank_")[1].split("_")[0])
