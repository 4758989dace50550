"""Checks of an adapter's directory before it is published: safe, and made for its base model.

Reads JSON and the headers of weight files, but no weight, and needs no torch.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from model_files.json_files import read_object
from model_files.weight_headers import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_TENSOR,
    ADAPTER_WEIGHTS_NAME,
    TensorHeader,
    name_some,
    read_file_header,
    read_weight_headers,
)
from serving.served_task import find_model_task, find_served_task
from serving.store.validation import check_files, check_settings
from storage import durable

_KNOWN = (
    *("peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora"),
    *("target_modules", "fan_in_fan_out", "bias", "inference_mode", "base_model_name_or_path"),
    *("rank_pattern", "alpha_pattern"),
)
"""The settings that an imported adapter keeps."""
_LIMITING = ("exclude_modules", "layers_to_transform", "layers_pattern")
# Settings that only say how the adapter was made, or which layers have one: its tensors show that.
_UNUSED = frozenset(
    {
        *("auto_mapping", "peft_version", "revision", "megatron_core", "qalora_group_size"),
        *("runtime_config", *_LIMITING),
    }
)
# Other starts change the base model's weights, so that the adapter is for those.
_PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal")
_PATTERN = re.compile(r"\^?[\w.-]+\$?")  # no repetition: such expressions match in linear time
_MAX_PATTERNS = 512
_MAX_ALPHA = 65536  # as in the settings of a training
_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
OUTER_LAYERS = frozenset(
    {
        *("lm_head", "embed_out", "output_layer", "embed_tokens", "embed_positions", "embed_in"),
        *("wte", "wpe", "word_embeddings"),
    }
)
"""The last parts of the names of heads and embeddings."""
_MERGE = (
    "merge it with its base model (PEFT's merge_and_unload, or 'export: merged' of a training) "
    "and add the result as a complete model"
)


class LayerShapes(NamedTuple):
    """The shapes of an adapter's tensors for one layer; A is [r, in], B is [out, r]."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    magnitude: tuple[int, ...] | None


def holds_adapter(directory: Path) -> bool:
    """Return whether a directory is that of an adapter, not of a complete model."""
    has_model = (directory / "config.json").exists()
    return (directory / ADAPTER_CONFIG_NAME).is_file() and not has_model


def check_adapter_directory(
    directory: Path, base: Path, *, links_stay_in: Path | None = None
) -> None:
    """Check that a directory is an adapter for the model in `base` that a generator can serve.

    Links are restricted as in `check_model_directory`. Raises `ValueError` that names the first
    fault found.
    """
    check_files(directory, links_stay_in=links_stay_in)
    _check_weight_file(directory)
    settings = read_object(directory / ADAPTER_CONFIG_NAME)
    _check_adapter_settings(settings)
    check_settings(directory)
    base_config = read_object(base / "config.json")
    task = find_model_task(base_config)
    if find_served_task(task).answers != "text":
        raise ValueError(
            f"the base model {base.name!r} has the task {task!r}, and adapters are served for "
            f"language models only: {_MERGE}"
        )
    check_layers(
        read_layer_shapes(directory / ADAPTER_WEIGHTS_NAME),
        settings,
        base.name,
        read_weight_headers(base),
        base_config.get("vocab_size"),
    )


def clean_adapter_settings(directory: Path, base: Path) -> None:
    """Reduce the settings of an adapter that was checked with `base` to those that are harmless.

    PEFT then loads the model with the name of `base` with it, and adapts only the layers that it
    has tensors for.
    """
    settings = read_object(directory / ADAPTER_CONFIG_NAME)
    cleaned = {key: settings[key] for key in _KNOWN if key in settings}
    cleaned["base_model_name_or_path"] = base.name
    layers = read_layer_shapes(directory / ADAPTER_WEIGHTS_NAME).keys()
    modules = [name.removesuffix(".weight") for name in read_weight_headers(base)]
    named = settings.get("target_modules")
    # A text is a regular expression, which may take any time to match.
    is_limited = any(settings.get(key) is not None for key in _LIMITING)
    if not isinstance(named, list) or is_limited or _adapts_others(named, layers, modules):
        ends = {name.rpartition(".")[2] for name in layers}
        means_others = _adapts_others(ends, layers, modules)
        cleaned["target_modules"] = sorted(layers if means_others else ends)
    if cleaned != settings:
        durable.write_json(directory / ADAPTER_CONFIG_NAME, cleaned)


def _adapts_others(named: Iterable[str], layers: Collection[str], modules: Iterable[str]) -> bool:
    """Return whether ends of names mean modules of the base model without tensors in an adapter.

    The names of `modules` may lack the prefix of the base model, which those of `layers` have.
    """
    ends = tuple(f".{end}" for end in named)
    adapted = {f".{name}" for name in layers}
    return any(
        f".{module}".endswith(ends) and not any(one.endswith(f".{module}") for one in adapted)
        for module in modules
    )


def read_layer_shapes(file: Path) -> dict[str, LayerShapes]:
    """Read the shapes of an adapter's tensors by the names of their layers; raise `ValueError`."""
    return arrange_layers(read_file_header(file), file.name)


def arrange_layers(headers: Mapping[str, TensorHeader], source: str) -> dict[str, LayerShapes]:
    """Return the shapes of an adapter's tensors by the names of their layers.

    `source` names the adapter in messages. Raises `ValueError` for a tensor that is not one of LoRA
    or DoRA, and for an incomplete pair.
    """
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, header in headers.items():
        matched = ADAPTER_TENSOR.fullmatch(name)
        if matched is None:
            raise ValueError(
                f"{source} has the tensor {name!r}, expected only names as in "
                f"'base_model.model.<layer>.lora_A.weight' of adapted linear layers: {_MERGE}"
            )
        if header.dtype not in _DTYPES:
            raise ValueError(
                f"tensor {name!r} of {source} has dtype {header.dtype}, expected one of "
                f"{', '.join(sorted(_DTYPES))}"
            )
        part = matched["part"].removesuffix(".weight")
        if part in (parts := found.setdefault(matched["module"], {})):
            raise ValueError(f"{source} has two tensors {part!r} of layer {matched['module']!r}")
        parts[part] = header.shape
    for module, parts in found.items():
        if not {"lora_A", "lora_B"} <= parts.keys():
            raise ValueError(
                f"{source} has for layer {module!r} only {', '.join(sorted(parts))}, expected "
                "lora_A and lora_B; export the adapter again"
            )
    if not found:
        raise ValueError(f"{source} has no tensors; export the adapter again")
    return {
        module: LayerShapes(parts["lora_A"], parts["lora_B"], parts.get("lora_magnitude_vector"))
        for module, parts in found.items()
    }


def check_layers(
    layers: Mapping[str, LayerShapes],
    settings: Mapping[str, Any],
    base_name: str,
    weights: Mapping[str, TensorHeader],
    vocab_size: object,
) -> None:
    """Check that the tensors of an adapter fit the weights of its base model.

    `settings` are PEFT's, `weights` are the headers of the base's files. Raises `ValueError`.
    """
    by_module = {
        module: _find_weight(module, weights, base_name, vocab_size) for module in sorted(layers)
    }
    if unknown := [module for module, weight in by_module.items() if weight is None]:
        raise ValueError(
            f"the adapter has tensors for {name_some(unknown)}, which match no layer of base model "
            f"{base_name!r}: it was made for another model; name that one as its base"
        )
    for module, weight in by_module.items():
        if weight is not None:
            _check_shapes(module, layers[module], weight.shape, settings, base_name)
    _check_consistency(layers, settings)


def _check_consistency(layers: Mapping[str, LayerShapes], settings: Mapping[str, Any]) -> None:
    """Raise `ValueError` if PEFT would ignore some of an adapter's tensors, or add others."""
    for module, layer in sorted(layers.items()):
        if (layer.magnitude is not None) != bool(settings.get("use_dora")):
            found = "no" if layer.magnitude is None else "a"
            raise ValueError(
                f"the adapter has {found} lora_magnitude_vector for {module!r}, and 'use_dora' in "
                f"{ADAPTER_CONFIG_NAME} is {settings.get('use_dora')!r}; export the adapter again"
            )
    named = settings.get("target_modules")
    if not isinstance(named, list):
        return
    ends = tuple(f".{end}" for end in named)
    if ignored := [module for module in sorted(layers) if not f".{module}".endswith(ends)]:
        raise ValueError(
            f"the adapter has tensors for {name_some(ignored)}, which 'target_modules' in "
            f"{ADAPTER_CONFIG_NAME} does not name: {str(named)[:80]}; export the adapter again"
        )


def _check_weight_file(directory: Path) -> None:
    if not (directory / ADAPTER_WEIGHTS_NAME).is_file():
        raise ValueError(
            f"{directory.name!r} has {ADAPTER_CONFIG_NAME} and no {ADAPTER_WEIGHTS_NAME}; save the "
            "adapter with PEFT's save_pretrained, or a complete model with its config.json"
        )
    for path in sorted(directory.rglob("*.safetensors")):
        if path != directory / ADAPTER_WEIGHTS_NAME:
            raise ValueError(
                f"{path.relative_to(directory)} is beside {ADAPTER_WEIGHTS_NAME}; expected the "
                "weights of one adapter: remove the file"
            )


def _check_adapter_settings(settings: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a setting with which PEFT would compute something else than LoRA."""
    _check_value(settings, "peft_type", ("LORA",))
    _check_value(settings, "task_type", ("CAUSAL_LM", None))
    _check_value(settings, "bias", ("none", None))
    _check_value(settings, "init_lora_weights", _PLAIN_STARTS)
    for key in ("use_dora", "use_rslora", "fan_in_fan_out"):
        _check_value(settings, key, (True, False, None))
    known = {*_KNOWN, *_UNUSED, "init_lora_weights"}
    for key, value in settings.items():
        if key not in known and value:
            raise ValueError(
                f"{ADAPTER_CONFIG_NAME}: {key[:80]!r} is {str(value)[:80]!r}, which is not served; "
                f"expected no such setting: {_MERGE}"
            )
    if type(rank := settings.get("r")) is not int or rank < 1:
        raise ValueError(f"{ADAPTER_CONFIG_NAME}: 'r' is {rank!r}, expected a positive integer")
    _check_alpha("lora_alpha", settings.get("lora_alpha"))
    named = settings.get("target_modules")
    if isinstance(named, list) and not all(isinstance(one, str) and one for one in named):
        raise ValueError(
            f"{ADAPTER_CONFIG_NAME}: 'target_modules' is {str(named)[:80]!r}, expected names of "
            "layers"
        )
    dropout = settings.get("lora_dropout", 0)
    if type(dropout) not in (int, float) or not 0 <= dropout <= 1:
        raise ValueError(
            f"{ADAPTER_CONFIG_NAME}: 'lora_dropout' is {str(dropout)[:80]!r}, expected a number "
            "from 0 to 1"
        )
    for key in ("rank_pattern", "alpha_pattern"):
        for pattern, value in _read_patterns(settings, key).items():
            if key == "alpha_pattern":
                _check_alpha(f"{key}.{pattern}", value)
            elif type(value) is not int or value < 1:
                raise ValueError(
                    f"{ADAPTER_CONFIG_NAME}: {key} of {pattern!r} is {value!r}, expected a "
                    "positive integer"
                )


def _check_value(settings: Mapping[str, Any], key: str, allowed: tuple[object, ...]) -> None:
    value = settings.get(key)
    if not any(value is one or (isinstance(value, str) and value == one) for one in allowed):
        shown = " or ".join(repr(one) for one in allowed if one is not None)
        raise ValueError(
            f"{ADAPTER_CONFIG_NAME}: {key!r} is {str(value)[:80]!r}, expected {shown}: {_MERGE}"
        )


def _check_alpha(key: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= _MAX_ALPHA:
        raise ValueError(
            f"{ADAPTER_CONFIG_NAME}: {key!r} is {repr(value)[:80]}, expected a positive number of "
            f"at most {_MAX_ALPHA}"
        )


def _read_patterns(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the values by pattern of a setting; the patterns are regular expressions."""
    patterns = settings.get(key) or {}
    if not isinstance(patterns, dict) or len(patterns) > _MAX_PATTERNS:
        raise ValueError(
            f"{ADAPTER_CONFIG_NAME}: {key!r} is {str(patterns)[:80]!r}, expected an object of at "
            f"most {_MAX_PATTERNS} patterns"
        )
    if faulty := [one for one in patterns if not _PATTERN.fullmatch(one)]:
        raise ValueError(
            f"{ADAPTER_CONFIG_NAME}: {key!r} has the pattern {faulty[0][:80]!r}, expected the end "
            "of a layer's name"
        )
    return patterns


def _find_weight(
    module: str, weights: Mapping[str, TensorHeader], base_name: str, vocab_size: object
) -> TensorHeader | None:
    """Return the header of a layer's weight; None if the base model has no such layer.

    As in transformers, the names in the files may lack the prefix of the base model. Raises
    `ValueError` for a head or an embedding.
    """
    prefix, _, rest = module.partition(".")
    weight = weights.get(f"{module}.weight")
    if weight is None and not any(name.startswith(f"{prefix}.") for name in weights):
        weight = weights.get(f"{rest}.weight")
    parts = module.split(".")
    is_in_block = any(part.isdecimal() for part in parts)
    has_vocabulary = weight is not None and vocab_size in weight.shape and not is_in_block
    if parts[-1] in OUTER_LAYERS or has_vocabulary:
        raise ValueError(
            f"the adapter changes {module!r}, the head or an embedding of base model "
            f"{base_name!r}, which is not served: {_MERGE}"
        )
    return weight


def _check_shapes(
    module: str,
    layer: LayerShapes,
    weight: tuple[int, ...],
    settings: Mapping[str, Any],
    base_name: str,
) -> None:
    """Check the shapes for one layer against its weight, [out, in]; GPT-2 keeps [in, out]."""
    if len(weight) != 2:
        raise ValueError(
            f"layer {module!r} of base model {base_name!r} has a weight of shape {list(weight)}, "
            f"which is no linear layer, and its adapter is not served: {_MERGE}"
        )
    outputs, inputs = weight[::-1] if settings.get("fan_in_fan_out") else weight
    patterns = _read_patterns(settings, "rank_pattern")
    matching = (key for key in patterns if re.fullmatch(rf"(.*\.)?({key})", module))
    key = next(matching, None)
    rank = settings["r"] if key is None else patterns[key]
    expected = LayerShapes((rank, inputs), (outputs, rank), layer.magnitude and (outputs,))
    if layer != expected:
        raise ValueError(
            f"the adapter's tensors for {module!r} have shapes {_show_shapes(layer)}, expected "
            f"{_show_shapes(expected)} for rank {rank} and base model {base_name!r}: it was made "
            "for another model or its settings were changed; name its own base"
        )
    if rank > 2 * min(weight):  # PiSSA and OLoRA end with twice the rank of the training
        raise ValueError(
            f"the adapter's rank for {module!r} is {rank}, larger than the layer: expected at most "
            f"{2 * min(weight)}, twice the smaller side of {outputs} × {inputs}; lower the rank"
        )


def _show_shapes(layer: LayerShapes) -> str:
    return ", ".join(str(list(shape)) for shape in layer if shape is not None)
