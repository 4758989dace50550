"""Which tensors a model's files have to hold, and what of a checkpoint each is made of.

What `save_pretrained` of the installed transformers would write: of tied weights, the name that the
architecture does not tie to another alone; and weights that transformers holds in another form than
files do, such as the experts of a layer in one tensor, turned back into the form of files.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import (
    PrefixChange,
    WeightConverter,
    apply_converters,
    revert_weight_conversion,
)

from training.safetensors_file import TensorEntry
from training.shards import StoredTensor, StoredWeights


class ConsolidationError(RuntimeError):
    """The shards do not make up the model that its configuration describes."""


@dataclass(frozen=True)
class Export:
    """Tensors of files made of tensors of the checkpoint.

    Nearly always one of one, as it is. Of a tensor with all experts of a layer each expert is an
    export by itself, so that no more than one has to be in memory.
    """

    sources: Mapping[str, StoredTensor]  # by their names in the module
    dtypes: Mapping[str, torch.dtype]  # of the sources, once exported
    entries: tuple[TensorEntry, ...]
    # What transformers calls each entry when it turns the sources back; empty if it need not.
    converted_names: tuple[str, ...] = ()
    expert: int | None = None  # which of the sources' experts it is of, if of one

    def name_parts(self) -> list[str]:
        """What of the module's parameters it is made of, as a probe names them."""
        part = "" if self.expert is None else f"[{self.expert}]"
        return [f"{name}{part}" for name, source in self.sources.items() if not source.is_buffer]


def build_meta_model(config: Any, dtype: torch.dtype) -> Any:
    """Build a model without weights, tied, with the conversions that saving it would undo."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()
    conversions = get_model_conversion_mapping(model, add_legacy=False)
    # Whether a prefix was in the base model's file is not known, and not needed: both load.
    model._weight_conversions = [c for c in conversions if not isinstance(c, PrefixChange)] or None
    return model


def plan_exports(weights: StoredWeights, model: Any, dtype: torch.dtype) -> list[Export]:
    """Plan every tensor of a model's files, larger element sizes first, as the format wants it.

    `model` is that of `build_meta_model`. Raises `ConsolidationError` that names what is missing in
    the checkpoint, left over, or of another shape.
    """
    stored = _match(weights, model)
    dtypes = _find_dtypes(stored, model, dtype)
    exports: list[Export] = []
    for names, is_converted in _group(stored, model):
        sources = {name: stored[name] for name in names}
        own_dtypes = {name: dtypes[name] for name in names}
        if is_converted:
            exports += _plan_conversion(sources, own_dtypes, model)
        else:
            entries = _try_conversion(sources, own_dtypes, model)  # files may name it otherwise
            exports.append(Export(sources, own_dtypes, tuple(entries.values())))
    return sorted(exports, key=lambda export: -export.entries[0].dtype.itemsize)


def plan_files(
    exports: list[Export], shard_bytes: int
) -> list[tuple[str, list[tuple[Export, TensorEntry]]]]:
    """Fill files in order, each up to `shard_bytes` or one tensor; returns names and contents."""
    files: list[list[tuple[Export, TensorEntry]]] = []
    room = 0
    for export in exports:
        for entry in export.entries:
            if not files or entry.size_bytes > room:
                files.append([])
                room = shard_bytes
            files[-1].append((export, entry))
            room -= entry.size_bytes
    if len(files) == 1:
        return [("model.safetensors", files[0])]
    return [
        (f"model-{number:05d}-of-{len(files):05d}.safetensors", content)
        for number, content in enumerate(files, 1)
    ]


def convert(model: Any, sources: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Turn the sources of an export into the form of files; returns tensors by their names."""
    converted: dict[str, torch.Tensor] = revert_weight_conversion(model, dict(sources))
    return converted


def _match(weights: StoredWeights, model: Any) -> dict[str, StoredTensor]:
    """Find in the checkpoint what the architecture has, tied names left out."""
    # Tied weights that training kept apart, since the base model's file had both, are both there.
    tied = set(model.all_tied_weights_keys) - set(weights.tensors)
    ignored = set(model._keys_to_ignore_on_save or ())
    matched: dict[str, StoredTensor] = {}
    used = set()
    for name, expected in model.state_dict().items():
        if name in tied or name in ignored:
            continue
        found = weights.find(name)
        if found is None:
            raise ConsolidationError(f"the checkpoint has no weight {name!r}")
        known_as, stored = found
        if stored.shape != expected.shape:
            raise ConsolidationError(
                f"{name!r} has the shape {tuple(stored.shape)} in the checkpoint, "
                f"{tuple(expected.shape)} expected"
            )
        matched[name] = stored
        used.add(known_as)
    names = {name for name, stored in weights.tensors.items() if not stored.is_buffer}
    if unused := names - used - ignored:
        raise ConsolidationError(f"the architecture has no place for {sorted(unused)}")
    return matched


def _find_dtypes(
    stored: Mapping[str, StoredTensor], model: Any, dtype: torch.dtype
) -> dict[str, torch.dtype]:
    """Settle what each is exported in: buffers keep theirs, and some modules insist on fp32."""
    kept = model._get_dtype_plan(dtype)
    declared = model.state_dict()
    dtypes = {}
    for name, tensor in stored.items():
        pattern = next((p for p in kept if re.search(p.replace("*", ".*"), name)), None)
        if tensor.is_buffer or not tensor.dtype.is_floating_point:
            dtypes[name] = tensor.dtype
        else:
            dtypes[name] = declared[name].dtype if pattern is None else kept[pattern]
    return dtypes


def _group(stored: Mapping[str, Any], model: Any) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Group the names that are turned back together, and tell whether they are changed by it."""
    conversions = [c.reverse_transform() for c in reversed(model._weight_conversions or ())]
    converters = [c for c in conversions if isinstance(c, WeightConverter)]
    groups: dict[str, list[str]] = {}
    for name in stored:
        target, pattern = apply_converters(name, converters)
        if pattern is None:
            yield (name,), False
        else:
            groups.setdefault(target, []).append(name)
    for names in groups.values():
        yield tuple(names), True


def _plan_conversion(
    sources: Mapping[str, StoredTensor], dtypes: Mapping[str, torch.dtype], model: Any
) -> list[Export]:
    """Plan what is turned back together: expert by expert where that comes to the same."""
    whole = _try_conversion(sources, dtypes, model)
    of_one, renamed = _try_experts(sources, dtypes, model, whole)
    if sorted(chain.from_iterable(renamed)) != sorted(whole):
        return [Export(sources, dtypes, tuple(whole.values()), tuple(whole))]
    return [
        Export(
            {name: source.select(expert) for name, source in sources.items()},
            dtypes,
            tuple(whole[name] for name in names),
            tuple(of_one),
            expert,
        )
        for expert, names in enumerate(renamed)
    ]


def _try_experts(
    sources: Mapping[str, StoredTensor],
    dtypes: Mapping[str, torch.dtype],
    model: Any,
    whole: Mapping[str, TensorEntry],
) -> tuple[dict[str, TensorEntry], list[list[str]]]:
    """Find what is made of the first expert, and the names that it would have for each of all."""
    counts = {source.shape[0] for source in sources.values() if len(source.shape) > 2}
    if len(counts) != 1 or any(len(source.shape) < 3 for source in sources.values()):
        return {}, []
    first = {name: source.select(0) for name, source in sources.items()}
    of_one = _try_conversion(first, dtypes, model)
    return of_one, [_rename_expert(of_one, whole, expert) for expert in range(counts.pop())]


def _try_conversion(
    sources: Mapping[str, StoredTensor], dtypes: Mapping[str, torch.dtype], model: Any
) -> dict[str, TensorEntry]:
    """Find what transformers makes of sources like these, without their values."""
    empty = {
        name: torch.empty(source.shape, dtype=dtypes[name], device="meta")
        for name, source in sources.items()
    }
    converted = convert(model, empty).items()
    entries = {name: TensorEntry(name, tensor.dtype, tensor.shape) for name, tensor in converted}
    assert len({entry.dtype for entry in entries.values()}) == 1, f"{[*sources]}: several dtypes"
    return entries


def _rename_expert(
    of_one: Mapping[str, TensorEntry], whole: Mapping[str, TensorEntry], expert: int
) -> list[str]:
    """Names of an expert's entries in the whole, which is called number 0 when it is alone.

    Which of a name's numbers is the expert's shows in what the whole has, and in equal shapes.
    """
    names = []
    for name, entry in of_one.items():
        places = [match.span() for match in re.finditer(r"(?<=\.)0(?=\.|$)", name)]
        names += [
            found.name
            for begin, end in places
            if (found := whole.get(f"{name[:begin]}{expert}{name[end:]}"))
            and found.shape == entry.shape
        ][:1]
    return names
