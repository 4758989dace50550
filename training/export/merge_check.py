"""Comparison of a merged model's files with those of its base model and of the adapter.

Each adapted weight is computed again from the files, a few rows at a time: W + s B A, or with DoRA
(arXiv 2402.09353) that with its rows scaled to the learned lengths. Libraries that merge have no
part in this, so that what they ignore or add twice is found.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open

from model_files.json_files import read_object
from model_files.weight_headers import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_WEIGHTS_NAME,
    INDEX_NAME,
    WEIGHTS_NAME,
    name_some,
)
from training.export.plan import ConsolidationError, Export
from training.export.verification import Check

_CHUNK_ELEMENTS = 4 << 20
_MAX_INDEX_BYTES = 100_000_000
# Of the magnitudes of all summands: 16 times the rounding of one sum in fp32. Sums of as many
# products as an adapter's rank in another order differ by less.
_SLACK = 2.0**-20
_GAIN_SLACK = 4.0  # DoRA divides by a sum over the whole row
_TENSOR = re.compile(
    r"base_model\.model\.(?P<module>.+)\."
    r"lora_(?P<part>A|B|magnitude_vector|embedding_A|embedding_B)(?:\.weight)?"
)


class WeightNames(NamedTuple):
    """How a model's weights are called in memory and in files."""

    in_files: Mapping[str, str]
    """By the names in memory, of those that files have unchanged."""
    written: Sequence[str]
    """All names in the files of the merged model."""
    prefix: str
    """What the names in the files of the base model may lack or have in addition."""
    ties: Mapping[str, str]
    """Names of weights that are another one, with that one's name."""
    transposed: Collection[str]
    """The weights, by their names in memory, that are [in, out]."""


@dataclass(frozen=True)
class _LayerUpdate:
    """What an adapter's file adds to one weight: `scale` B A, and the row lengths of DoRA."""

    a: torch.Tensor  # [r, in]
    b: torch.Tensor  # [out, r]
    scale: float
    magnitude: torch.Tensor | None  # [out]
    is_transposed: bool

    def count_differences(self, before: torch.Tensor, after: torch.Tensor) -> int:
        """Count the values of a merged weight that are not the sum, rounded to its dtype."""
        left, right = self.b, self.a
        if self.is_transposed and self.magnitude is None:
            left, right = right.T, left.T
        elif self.is_transposed:  # the lengths are those of columns
            before, after = before.T, after.T
        if before.shape != after.shape or before.shape != (left.shape[0], right.shape[1]):
            return after.numel()
        different = 0
        num_rows = max(1, _CHUNK_ELEMENTS // before.shape[1])
        for start in range(0, before.shape[0], num_rows):
            rows = slice(start, start + num_rows)
            lower, upper = self._bound(before[rows].float(), left[rows], right, rows)
            found = after[rows]
            is_same = (found >= lower.to(found.dtype)) & (found <= upper.to(found.dtype))
            different += int((~is_same).sum())  # NaN is never the same
        return different

    def _bound(
        self, before: torch.Tensor, left: torch.Tensor, right: torch.Tensor, rows: slice
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the least and the largest value that rounded sums in fp32 may have."""
        exact = before + self.scale * (left @ right)
        slack = _SLACK * (before.abs() + abs(self.scale) * (left.abs() @ right.abs()))
        if self.magnitude is not None:
            gain = (self.magnitude[rows] / exact.norm(dim=1))[:, None]
            exact, slack = exact * gain, slack * gain.abs() * _GAIN_SLACK
        return exact - slack, exact + slack


class MergeComparison:
    """The comparison of the files of a merged model with those it was made from.

    Raises `ConsolidationError` for a tensor of the adapter that belongs to no weight of the merged
    model, and for a weight that the files of the base model do not have under its name: neither can
    be compared.
    """

    def __init__(self, adapter: Path, base: Path, names: WeightNames) -> None:
        self._before = _WeightFiles(base)
        self._updates = _read_updates(adapter, names)
        self._originals = {name: self._find_original(name, names) for name in names.written}
        if absent := [name for name, found in self._originals.items() if found is None]:
            raise ConsolidationError(
                f"the files of base model {base.name!r} do not have {name_some(absent)} under "
                "these names, so the merged weights cannot be compared with them; load the base "
                "with transformers, save it with save_pretrained, and add that"
            )

    @torch.no_grad()
    def check(self, merged: Path) -> Check:
        """Compare every tensor of a merged model's directory."""
        after = _WeightFiles(merged)
        wrong, changed = [], []
        for name in after.names:
            found = after.read(name)
            before = self._before.read(self._originals[name] or name)
            update = self._updates.get(name)
            if update is None:
                changed += [name] * (not _are_equal(before, found))
            elif different := update.count_differences(before, found):
                wrong.append(f"{name} ({different:,} of {found.numel():,} values)")
        faults = []
        if wrong:
            faults.append(
                f"weights that are not those of the base plus the adapter: {_list(wrong)}"
            )
        if changed:
            faults.append(
                f"weights without an adapter that differ from the base: {name_some(changed)}"
            )
        num_others = len(after.names) - len(self._updates)
        detail = (
            f"{len(self._updates)} weights are those of the base plus the adapter, to rounding; "
            f"the other {num_others} are the base's"
        )
        return Check(name="merged", passed=not faults, detail="; ".join(faults) or detail)

    def _find_original(self, name: str, names: WeightNames) -> str | None:
        """Return the name in the base's files of a tensor of the merged files."""
        same = [name, *(one for one, other in names.ties.items() if other == name)]
        same += [names.ties[name]] if name in names.ties else []
        prefix = f"{names.prefix}."
        for one in same:
            for candidate in (one, one.removeprefix(prefix), prefix + one):
                if candidate in self._before.names:
                    return candidate
        return None


def map_names(model: Any, exports: Sequence[Export], transposed: Collection[str]) -> WeightNames:
    """Return the names of the weights of a `model` that `build_meta_model` made, as exported."""
    in_files = {
        next(iter(export.sources)): export.entries[0].name
        for export in exports
        if not export.converted_names
    }
    written = [entry.name for export in exports for entry in export.entries]
    ties = dict(model.all_tied_weights_keys)
    return WeightNames(in_files, written, model.base_model_prefix, ties, transposed)


class _WeightFiles:
    """The tensors of a model directory, mapped from its safetensors files."""

    def __init__(self, directory: Path) -> None:
        files = [WEIGHTS_NAME]
        if not (directory / WEIGHTS_NAME).is_file():
            index = read_object(directory / INDEX_NAME, _MAX_INDEX_BYTES)
            files = sorted(set(index["weight_map"].values()))
        self.names: dict[str, Any] = {}
        for file in files:
            opened = _open(directory / file)
            self.names |= dict.fromkeys(opened.keys(), opened)

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self.names[name].get_tensor(name)
        return tensor


def _open(path: Path) -> Any:
    return safe_open(path, framework="pt")


def _read_updates(adapter: Path, names: WeightNames) -> dict[str, _LayerUpdate]:
    """Read what an adapter's file adds, by the names of the weights in the merged files."""
    settings = read_object(adapter / ADAPTER_CONFIG_NAME)
    parts: dict[str, dict[str, torch.Tensor]] = {}
    unknown = []
    file = _open(adapter / ADAPTER_WEIGHTS_NAME)
    for name in file.keys():  # noqa: SIM118 - no mapping
        if matched := _TENSOR.fullmatch(name):
            tensor = file.get_tensor(name).float()
            parts.setdefault(matched["module"], {})[matched["part"]] = tensor
        else:
            unknown.append(name)
    updates = {}
    for module, tensors in parts.items():
        weight = f"{module}.weight"
        in_files = names.in_files.get(weight, weight)
        update = None
        with suppress(KeyError, ZeroDivisionError):
            update = _build_update(module, tensors, settings, weight in names.transposed)
        if update is None or in_files not in names.written:
            unknown += [f"{module}.lora_{part}" for part in tensors]
        else:
            updates[in_files] = update
    if unknown:
        raise ConsolidationError(
            f"adapter {adapter.name!r} has the tensors {name_some(unknown)}, which cannot be added "
            "to a weight that the files of its base model have; expected lora_A and lora_B of "
            "linear layers that it has: name the base that the adapter was made for, or merge it "
            "with PEFT's merge_and_unload"
        )
    return updates


def _build_update(
    module: str,
    tensors: Mapping[str, torch.Tensor],
    settings: Mapping[str, Any],
    is_transposed: bool,
) -> _LayerUpdate | None:
    """Arrange the tensors of one layer; None if some are missing or cannot be combined."""
    is_embedding = "embedding_A" in tensors
    kind = "embedding_" if is_embedding else ""
    a, b = tensors[f"{kind}A"], tensors[f"{kind}B"]
    magnitude = tensors.get("magnitude_vector")
    if len(tensors) != 2 + (magnitude is not None) or (a.ndim, b.ndim) != (2, 2):
        return None
    if a.shape[0] != b.shape[1] or (is_embedding and magnitude is not None):
        return None
    patterns = settings.get("alpha_pattern") or {}
    matching = (key for key in patterns if re.match(rf"(.*\.)?({key})$", module))
    alpha = patterns.get(next(matching, None), settings["lora_alpha"])
    rank = a.shape[0]
    scale = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
    lengths = None if magnitude is None else magnitude.flatten()
    return _LayerUpdate(a, b, scale, lengths, is_transposed or is_embedding)


def _are_equal(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Return whether a tensor in another dtype has the same bits, a chunk at a time."""
    if before.shape != after.shape:
        return False
    pairs = zip(_split(before), _split(after), strict=True)
    return all(
        torch.equal(one.to(other.dtype).view(torch.uint8), other.view(torch.uint8))
        for one, other in pairs
    )


def _split(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    values = tensor.flatten()
    for start in range(0, values.numel(), _CHUNK_ELEMENTS):
        yield values[start : start + _CHUNK_ELEMENTS]


def _list(texts: Sequence[str], max_texts: int = 5) -> str:
    more = f" and {len(texts) - max_texts} more" if len(texts) > max_texts else ""
    return ", ".join(texts[:max_texts]) + more
