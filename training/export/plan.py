"""The tensors of a model's files, and the checkpoint tensors that each is made from.

The plan follows `save_pretrained` of the installed transformers. Of tied weights, only the name
that the architecture does not tie to another is written. Weights that transformers represents in
another form than files do, such as all experts of a layer in one tensor, are converted back to the
form of files.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import transformers
from transformers.core_model_loading import (
    PrefixChange,
    WeightConverter,
    apply_converters,
    revert_weight_conversion,
)

from training.export.safetensors_file import TensorEntry
from training.export.zero_shards import StoredTensor, StoredWeights


class ConsolidationError(RuntimeError):
    """The shards do not make up the model that its configuration describes."""


@dataclass(frozen=True)
class Export:
    """Tensors for files, and the tensors of the checkpoint that they are made from.

    Nearly always one tensor is made from one, unchanged. If a tensor contains all experts of a
    layer, each expert is a separate export, so that only one has to be in memory at a time.
    """

    sources: Mapping[str, StoredTensor]  # by their names in the module
    dtypes: Mapping[str, torch.dtype]  # of the sources, once exported
    entries: tuple[TensorEntry, ...]
    # Each entry's name in the output of `convert`; empty if no conversion is needed.
    converted_names: tuple[str, ...] = ()
    expert: int | None = None  # index among the sources' experts, if of one expert

    def name_parts(self) -> list[str]:
        """Return the parameters, or their experts, that it is made from, as a probe names them."""
        part = "" if self.expert is None else f"[{self.expert}]"
        return [f"{name}{part}" for name, source in self.sources.items() if not source.is_buffer]


def build_meta_model(
    config: Any, dtype: torch.dtype, model_class: str = "AutoModelForCausalLM"
) -> Any:
    """Build a model without weights, but with its ties and the conversions that saving reverts.

    `model_class` is the class of transformers that loads it.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping

    with torch.device("meta"):
        model = getattr(transformers, model_class).from_config(config, dtype=dtype)
    model.tie_weights()
    conversions = get_model_conversion_mapping(model, add_legacy=False)
    # Whether the base model's file had a prefix is unknown and irrelevant: both forms load.
    model._weight_conversions = [c for c in conversions if not isinstance(c, PrefixChange)] or None
    return model


def plan_exports(weights: StoredWeights, model: Any, dtype: torch.dtype) -> list[Export]:
    """Plan every tensor of a model's files, larger element sizes first, as the format requires.

    `model` comes from `build_meta_model`. Raises `ConsolidationError` that names tensors of the
    checkpoint that are missing, unexpected, or of another shape.
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
            entries = _try_conversion(sources, own_dtypes, model)  # files may use another name
            exports.append(Export(sources, own_dtypes, tuple(entries.values())))
    return sorted(exports, key=lambda export: -export.entries[0].dtype.itemsize)


def plan_files(
    exports: list[Export], shard_bytes: int
) -> list[tuple[str, list[tuple[Export, TensorEntry]]]]:
    """Assign tensors to files in order, each up to `shard_bytes` or one tensor; returns the files.

    Each file is its name and its content.
    """
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
    """Convert the sources of an export to the form of files; returns tensors by their names."""
    converted: dict[str, torch.Tensor] = revert_weight_conversion(model, dict(sources))
    return converted


def _match(weights: StoredWeights, model: Any) -> dict[str, StoredTensor]:
    """Find the architecture's tensors in the checkpoint, except tied names."""
    # If the base model's file had both of two tied weights, training keeps both: export both.
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
    """Choose the dtype of each export: buffers keep theirs, and some modules require fp32."""
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
    """Group the names that are converted together; yields each group and whether it is changed."""
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
    """Plan the exports of a group that is converted: one per expert if the result is the same."""
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
    """Find the entries made from the first expert, and their names for each of the experts."""
    counts = {source.shape[0] for source in sources.values() if len(source.shape) > 2}
    if len(counts) != 1 or any(len(source.shape) < 3 for source in sources.values()):
        return {}, []
    first = {name: source.select(0) for name, source in sources.items()}
    of_one = _try_conversion(first, dtypes, model)
    return of_one, [_rename_expert(of_one, whole, expert) for expert in range(counts.pop())]


def _try_conversion(
    sources: Mapping[str, StoredTensor], dtypes: Mapping[str, torch.dtype], model: Any
) -> dict[str, TensorEntry]:
    """Find the entries that transformers makes from such sources, without their values."""
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
    """Return the names in `whole` of an expert's entries; `of_one` has them with the number 0.

    A name may contain several zeros. The expert's number is the one whose replacement gives a name
    in `whole` with the same shape.
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
