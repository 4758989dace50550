"""The user's own DeepSpeed configuration: keys that the spec sets, and keys that are refused.

A key with the same meaning as a setting of the spec must agree with it: a value that only one of
them has is used for both, 'auto' takes the spec's value, and a contradiction is refused by name.
All other keys are passed to DeepSpeed unchanged.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

AUTO = "auto"


@dataclass(frozen=True)
class _EquivalentKey:
    """A DeepSpeed key with the same meaning as a field of the spec."""

    key: str  # path in the configuration, with dots
    field: str
    translate: Callable[[Any], Any] = lambda value: value


def _is_on_cpu(device: Any) -> bool:
    if device not in ("cpu", "none"):
        raise ValueError(f"is {device!r}, expected 'cpu' or 'none'")
    return bool(device == "cpu")


def _read_betas(betas: Any) -> tuple[float, float]:
    if not isinstance(betas, (list, tuple)) or len(betas) != 2:
        raise ValueError(f"is {betas!r}, expected two numbers")
    return tuple(betas)


def _name_schedule(scheduler: Any) -> str:
    schedules = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
    if not isinstance(scheduler, str) or scheduler not in schedules:
        raise ValueError(f"is {scheduler!r}, expected one of {sorted(schedules)}")
    return schedules[scheduler]


_EQUIVALENT_KEYS = (
    _EquivalentKey("zero_optimization.stage", "zero_stage"),
    _EquivalentKey("zero_optimization.offload_optimizer.device", "offload_optimizer", _is_on_cpu),
    _EquivalentKey("zero_optimization.offload_param.device", "offload_parameters", _is_on_cpu),
    _EquivalentKey("gradient_clipping", "max_grad_norm"),
    _EquivalentKey("gradient_accumulation_steps", "gradient_accumulation_steps"),
    _EquivalentKey("train_micro_batch_size_per_gpu", "micro_batch_size"),
    _EquivalentKey("wall_clock_breakdown", "wall_clock_breakdown"),
    _EquivalentKey("optimizer.params.lr", "learning_rate"),
    _EquivalentKey("scheduler.params.warmup_max_lr", "learning_rate"),
    _EquivalentKey("optimizer.params.weight_decay", "weight_decay"),
    _EquivalentKey("optimizer.params.betas", "adam_betas", _read_betas),
    _EquivalentKey("optimizer.params.eps", "adam_epsilon"),
    _EquivalentKey("scheduler.type", "lr_schedule", _name_schedule),
)
# Filled in from the size of the model, as Transformers does; see `select_extras`.
_FILLED = (
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
)
# Keys that this program sets itself; their values come from the spec only.
_SET_BY_SPEC = (
    "train_batch_size",
    "optimizer",
    "scheduler",
    "bf16.enabled",
    "fp16.enabled",
    *(equivalent.key for equivalent in _EQUIVALENT_KEYS),
)
_REFUSED = {
    "amp": "mixed precision is set by 'precision'",
    "autotuning": "it starts runs of its own",
    "checkpoint.load_universal": "a run knows itself what its checkpoint is",
    "compression_training": "it changes the model",
    "curriculum_learning": "the order of rows is ours, or a run could not be resumed",
    "data_efficiency": "the order of rows is ours, or a run could not be resumed",
    "elasticity": "the number of workers is set by 'num_workers' and 'min_workers'",
    "zero_optimization.cpu_offload": "it is set by 'offload_optimizer'",
}
_SECTIONS = (
    "bf16",
    "fp16",
    "optimizer",
    "optimizer.params",
    "scheduler",
    "scheduler.params",
    "zero_optimization",
    "zero_optimization.offload_optimizer",
    "zero_optimization.offload_param",
)
_ADAMW_KEYS = frozenset({"lr", "betas", "eps", "weight_decay"})
_SET_ELSEWHERE = {
    "scheduler.params.warmup_num_steps": "warmup_steps",
    "scheduler.params.total_num_steps": "max_steps",
    "scheduler.params.warmup_min_lr": "lr_schedule",
    "scheduler.params.warmup_type": "lr_schedule",
}


def adopt_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the settings in a spec's DeepSpeed configuration into the spec's values.

    Raises `ValueError` that names a key which contradicts the spec or is not supported.
    """
    config = values["deepspeed"]
    if not isinstance(config, Mapping):
        raise ValueError(f"deepspeed is {config!r}, expected keys and values, or a file of them")
    for section in _SECTIONS:
        if not isinstance(found := _find(config, section) or {}, Mapping):
            raise ValueError(f"deepspeed.{section} is {found!r}, expected keys and values")
    _refuse_unsupported(config)
    adopted = dict(values)
    for equivalent in _EQUIVALENT_KEYS:
        found = _find(config, equivalent.key)
        if found in (None, AUTO):
            continue
        try:
            value = equivalent.translate(found)
        except ValueError as exc:
            raise ValueError(f"deepspeed.{equivalent.key} {exc}") from None
        _adopt(adopted, equivalent.field, value, f"deepspeed.{equivalent.key} is {found!r}")
    if (precision := _find_precision(config)) is not None:
        source = f"deepspeed's bf16.enabled and fp16.enabled mean {precision}"
        _adopt(adopted, "precision", precision, source)
    _check_switches(config, adopted.get("precision"))
    return adopted


def check_batch_size(
    config: Mapping[str, Any], micro_batch_size: int | None, accumulation: int, num_workers: int
) -> None:
    """Check DeepSpeed's identity: train batch = micro batch × accumulation × workers.

    Raises `ValueError` with the figures on both sides.
    """
    found = config.get("train_batch_size", AUTO)
    if found == AUTO:
        return
    if micro_batch_size is None:
        raise ValueError(
            f"deepspeed.train_batch_size is {found}, but how many rows a micro batch has is left "
            "to micro_batch_tokens: set micro_batch_size as well, or train_batch_size to 'auto'"
        )
    expected = micro_batch_size * accumulation * num_workers
    if found != expected:
        raise ValueError(
            f"deepspeed.train_batch_size is {found}, but micro batch {micro_batch_size} × "
            f"accumulation {accumulation} × {num_workers} workers = {expected}: change one of "
            "them, or set it to 'auto'"
        )


def select_extras(config: Mapping[str, Any], hidden_size: int) -> dict[str, Any]:
    """Select the keys of the user's configuration that the spec does not set.

    'auto' bucket sizes are computed from the model's hidden size, as Transformers does.
    """
    sizes = {
        "zero_optimization.reduce_bucket_size": hidden_size * hidden_size,
        "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * hidden_size * hidden_size),
        "zero_optimization.stage3_param_persistence_threshold": 10 * hidden_size,
    }
    extras: dict[str, Any] = {}
    for key, value in _flatten(config):
        if _is_set_by_spec(key):
            continue
        _put(extras, key, sizes[key] if value == AUTO else value)
    return extras


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    for key, reason in _REFUSED.items():
        found = _find(config, key)
        is_off = found in (None, False) or _find(config, f"{key}.enabled") is False
        if not is_off:
            raise ValueError(f"deepspeed.{key} is not supported: {reason}")
    for key, field in _SET_ELSEWHERE.items():
        if _find(config, key) not in (None, AUTO):
            raise ValueError(
                f"deepspeed.{key} is {_find(config, key)!r}: set {field} instead, and it to 'auto'"
            )
    optimizer = _find(config, "optimizer.type")
    if optimizer not in (None, AUTO, "Adam", "AdamW"):
        raise ValueError(f"deepspeed.optimizer.type is {optimizer!r}: AdamW is the only optimizer")
    if unknown := set(_find(config, "optimizer.params") or {}) - _ADAMW_KEYS:
        raise ValueError(
            f"deepspeed.optimizer.params has {sorted(unknown)}, expected {sorted(_ADAMW_KEYS)}"
        )
    for key, value in _flatten(config):
        if value == AUTO and not _is_set_by_spec(key) and key not in _FILLED:
            raise ValueError(f"deepspeed.{key} is 'auto', which cannot be filled in: give a value")


def _is_set_by_spec(key: str) -> bool:
    return any(key == own or key.startswith(f"{own}.") for own in _SET_BY_SPEC)


def _adopt(values: dict[str, Any], field: str, value: Any, source: str) -> None:
    set_here = values.get(field)
    if isinstance(set_here, list):
        set_here = tuple(set_here)
    if set_here not in (None, AUTO) and set_here != value:
        raise ValueError(f"{source}, but {field} is {set_here!r}: set one of them, or it to 'auto'")
    values[field] = value


def _find_precision(config: Mapping[str, Any]) -> str | None:
    """Return the precision that the two switches select, or None if they leave it open."""
    bf16, fp16 = _find(config, "bf16.enabled"), _find(config, "fp16.enabled")
    if bf16 is True and fp16 is True:
        raise ValueError("deepspeed has both bf16.enabled and fp16.enabled: enable one of them")
    if bf16 is True or fp16 is True:
        return "bf16" if bf16 is True else "fp16"
    return "fp32" if False in (bf16, fp16) and AUTO not in (bf16, fp16) else None


def is_switched_off(config: Mapping[str, Any], precision: Any) -> bool:
    """Return whether a configuration explicitly disables a precision."""
    return _find(config, f"{precision}.enabled") is False


def _check_switches(config: Mapping[str, Any], precision: Any) -> None:
    """Refuse a precision that is explicitly disabled."""
    if is_switched_off(config, precision):
        raise ValueError(
            f"deepspeed.{precision}.enabled is False, but precision is {precision!r}: set one of "
            "them, or it to 'auto'"
        )


def _find(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _put(config: dict[str, Any], key: str, value: Any) -> None:
    *folders, name = key.split(".")
    for folder in folders:
        config = config.setdefault(folder, {})
    config[name] = value
