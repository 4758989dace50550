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
_USABLE: dict[str, tuple[type, ...]] = {
    "default": _ADAPTABLE,
    "pissa": _LINEAR,
    "olora": (torch.nn.Linear,),
}
"""Layers that PEFT can start an adapter of by each `init`."""
_MAX_SHOWN = 20


def choose_targets(
    model: torch.nn.Module, settings: AdapterSettings, saved: Sequence[str]
) -> list[str]:
    """Return the ends of the names of the layers to adapt; they match no other adaptable layer.

    Layers within the modules `saved` are learned whole and get no adapter. Raises `SettingError` if
    no layer is left, if a name matches none, or if PEFT has no such adapter for a layer.
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
        _check_layer(name, layers[name], settings)
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


def check_merge(model: torch.nn.Module, targets: Sequence[str], saved: Sequence[str]) -> None:
    """Raise `SettingError` for an adapter of one of two modules that share a weight.

    A merged model has the weight once, so the other module would change as well.
    """
    users: dict[torch.nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        users.setdefault(parameter, []).append(name.rpartition(".")[0])
    for modules in users.values():
        for number, name in enumerate(modules if len(modules) > 1 else []):
            if _matches(name, targets):
                setting = "target_modules"
            elif _is_within(name, saved):
                setting = "modules_to_save"
            else:
                continue
            raise SettingError(
                f"adapter.{setting} has {_find_end(name)!r}, whose weight {modules[number - 1]!r} "
                "shares, and a merged model has it only once: remove it from "
                f"adapter.{setting}, or set adapter.export to 'adapter'"
            )


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
                found = _describe_other(model, end)
                raise SettingError(
                    f"adapter.target_modules has {end!r}, {found}; it has {_list_ends(layers)}"
                )
            if _means_experts(model, end):
                raise SettingError(
                    f"adapter.target_modules has {end!r}, which PEFT takes for the experts of "
                    f"{model.config.model_type!r}, whose weights are in one tensor: remove it, or "
                    "set adapter.target_modules to 'auto'"
                )
        return [name for name in layers if _matches(name, settings.target_modules)]
    head = model.get_output_embeddings()
    linear = [name for name, one in layers.items() if isinstance(one, _LINEAR) and one is not head]
    linear = [name for name in linear if not _is_router(model, name)]
    experts = {end for end in map(_find_end, linear) if _means_experts(model, end)}
    linear = [name for name in linear if _find_end(name) not in experts]
    if settings.target_modules == "all-linear":
        return linear
    # The numbers in names are those of repeated blocks.
    return [name for name in linear if any(part.isdigit() for part in name.split("."))]


def _describe_other(model: Any, end: str) -> str:
    """Describe what a name means in a model that has no layer with it that can be adapted."""
    for name, module in model.named_modules():
        if name and _matches(name, [end]):
            return f"a {type(module).__name__}, and an adapter is added to linear layers of a model"
        for own, _ in module.named_parameters(recurse=False):
            if _matches(f"{name}.{own}", [end]):
                return (
                    f"a parameter of {type(module).__name__}, and an adapter is added to linear "
                    "layers of a model"
                )
    return "and the model has no layer with such a name"


def _is_router(model: Any, name: str) -> bool:
    """Return whether a layer chooses or weighs experts: the gate or router beside them."""
    parts = name.split(".")
    for length in range(1, len(parts)):
        has_experts = hasattr(model.get_submodule(".".join(parts[:length])), "experts")
        if has_experts and parts[length].endswith(("gate", "router")):
            return True
    return False


def _means_experts(model: Any, end: str) -> bool:
    """Return whether PEFT takes a name for the tensors of a model's experts.

    transformers 4 had a layer for each expert, and PEFT gives their names the new meaning, even
    where the model has other layers of this name.
    """
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    config = LoraConfig(target_modules=[end])
    try:
        convert_peft_config_for_transformers(config, model, None)
    except ValueError:  # it also expects the names of the tensor's other layers
        return True
    return bool(config.target_parameters)


def _check_layer(name: str, layer: Any, settings: AdapterSettings) -> None:
    """Raise `SettingError` for a layer that PEFT has no such adapter for."""
    rows, columns = _find_sizes(layer)
    if settings.rank > min(rows, columns):
        raise SettingError(
            f"adapter.rank is {settings.rank}, more than {name!r} of {rows} × {columns} has; "
            f"lower it to at most {min(rows, columns)}, or name other layers in "
            "adapter.target_modules"
        )
    if settings.rank % getattr(layer, "groups", 1):
        raise SettingError(
            f"adapter.rank is {settings.rank}, expected a multiple of the {layer.groups} groups of "
            f"the convolution {name!r}: change it, or name other layers in adapter.target_modules"
        )
    usable = _USABLE[settings.init]
    if not isinstance(layer, usable):
        raise SettingError(
            f"adapter.init is {settings.init!r}, which PEFT does not have for {name!r}, a "
            f"{type(layer).__name__}: set it to 'default', or name other layers in "
            "adapter.target_modules"
        )


def _matches(name: str, ends: Iterable[str]) -> bool:
    """Return whether a name ends in one of some ends, as PEFT compares them."""
    return any(name == end or name.endswith(f".{end}") for end in ends)


def _is_within(name: str, modules: Sequence[str]) -> bool:
    """Return whether a layer is one of some modules or a part of one."""
    parts = name.split(".")
    return any(_matches(".".join(parts[:length]), modules) for length in range(1, len(parts) + 1))


def _find_sizes(layer: Any) -> tuple[int, int]:
    """Return the rows and columns of a layer's weight, which may be sharded or quantised."""
    if isinstance(layer, torch.nn.Linear):
        return layer.out_features, layer.in_features
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


def _find_end(name: str) -> str:
    return name.rpartition(".")[2]


def _list_ends(names: Iterable[str]) -> str:
    ends = sorted(set(map(_find_end, names)) - {""})
    shown = ", ".join(repr(end) for end in ends[:_MAX_SHOWN] if not end.isdigit())
    return f"{shown}, …" if len(ends) > _MAX_SHOWN else shown
