"""The layers of a model that an adapter is added to, chosen or named by the user."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from model_files.trainable import is_of_base
from training.settings.adapter_settings import AdapterSettings
from training.spec import SettingError

_LINEAR = (torch.nn.Linear, Conv1D)
_ADAPTABLE = (*_LINEAR, torch.nn.Conv2d, torch.nn.Embedding)
_MAX_SHOWN = 20


def choose_targets(
    model: torch.nn.Module, settings: AdapterSettings, saved: Sequence[str]
) -> list[str]:
    """Return the ends of the names of the layers to adapt; they match no other adaptable layer.

    Layers within the modules `saved` are learned whole and get no adapter. Raises `SettingError` if
    no layer is left, if a name matches none, or if a layer has fewer rows or columns than the rank.
    """
    layers = {name: one for name, one in model.named_modules() if isinstance(one, _ADAPTABLE)}
    layers = {name: one for name, one in layers.items() if not _is_within(name, saved)}
    found = _find_layers(model, settings, layers)
    if not found:
        raise SettingError(
            f"adapter.target_modules is {settings.target_modules!r}, and the model has no such "
            f"layer; name some of its layers: {_list_ends(layers)}"
        )
    for name in found:
        rows, columns = _find_sizes(layers[name])
        if settings.rank > min(rows, columns):
            raise SettingError(
                f"adapter.rank is {settings.rank}, more than {name!r} of {rows} × {columns} has; "
                f"lower it to at most {min(rows, columns)}, or name other layers in "
                "adapter.target_modules"
            )
    return _shorten(found, layers)


def find_saved_modules(model: Any, settings: AdapterSettings, *, has_new_head: bool) -> list[str]:
    """Return the names of the modules that are learned whole, a new head among them.

    Raises `SettingError` for a name that the model does not have.
    """
    names = [name for name, _ in model.named_modules() if name]
    found: dict[str, None] = {}
    if has_new_head:
        for name, _ in model.named_parameters():
            if not is_of_base(name, model.base_model_prefix):
                found[_find_head_module(name)] = None
    for end in settings.modules_to_save:
        matching = [name for name in names if _matches(name, [end])]
        if not matching:
            raise SettingError(
                f"adapter.modules_to_save has {end!r}, and the model has no module with such a "
                f"name; it has {_list_ends(names)}"
            )
        found.update(dict.fromkeys(matching))
    return list(found)


def _find_head_module(parameter: str) -> str:
    """Return the module of a head, or of a pooler before it, that a parameter belongs to."""
    before, is_pooler, _ = parameter.partition(".pooler.")
    return f"{before}.pooler" if is_pooler else parameter.partition(".")[0]


def _find_layers(
    model: Any, settings: AdapterSettings, layers: Mapping[str, torch.nn.Module]
) -> list[str]:
    """Return the names of the layers that the settings mean."""
    if not isinstance(settings.target_modules, str):
        for end in settings.target_modules:
            if not any(_matches(name, [end]) for name in layers):
                raise SettingError(
                    f"adapter.target_modules has {end!r}, and the model has no layer with such a "
                    f"name; it has {_list_ends(layers)}"
                )
        return [name for name in layers if _matches(name, settings.target_modules)]
    head = model.get_output_embeddings()
    linear = [name for name, one in layers.items() if isinstance(one, _LINEAR) and one is not head]
    if settings.target_modules == "all-linear":
        return linear
    # The numbers in names are those of repeated blocks.
    return [name for name in linear if any(part.isdigit() for part in name.split("."))]


def _matches(name: str, ends: Iterable[str]) -> bool:
    """Return whether a name ends in one of some ends, as PEFT compares them."""
    return any(name == end or name.endswith(f".{end}") for end in ends)


def _is_within(name: str, modules: Sequence[str]) -> bool:
    """Return whether a layer is one of some modules or a part of one."""
    parts = name.split(".")
    return any(_matches(".".join(parts[:length]), modules) for length in range(1, len(parts) + 1))


def _find_sizes(layer: Any) -> tuple[int, int]:
    """Return the rows and columns of a layer's weight, which may be sharded."""
    shape = getattr(layer.weight, "ds_shape", layer.weight.shape)
    return int(shape[0]), int(shape[1:].numel())


def _shorten(names: Sequence[str], layers: Iterable[str]) -> list[str]:
    """Return the shortest ends of names that match exactly these layers, sorted."""
    wanted = set(names)
    for length in range(1, max(name.count(".") for name in names) + 2):
        ends = sorted({".".join(name.split(".")[-length:]) for name in names})
        if {name for name in layers if _matches(name, ends)} == wanted:
            return ends
    return sorted(names)


def _list_ends(names: Iterable[str]) -> str:
    ends = sorted({name.rpartition(".")[2] for name in names} - {""})
    shown = ", ".join(repr(end) for end in ends[:_MAX_SHOWN] if not end.isdigit())
    return f"{shown}, …" if len(ends) > _MAX_SHOWN else shown
