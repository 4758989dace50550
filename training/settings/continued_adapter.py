"""The settings of a training that continues an adapter in PEFT's layout."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_files.json_files import read_object
from model_files.weight_headers import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_TENSOR,
    ADAPTER_WEIGHTS_NAME,
    read_file_header,
)
from training.settings.adapter_settings import AUTO_TARGETS


def continue_settings(folder: Path, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings of a spec's adapter that continues the one in `folder`.

    The folder decides `method`, `rank`, `alpha` and `target_modules`, which `given` need not name.
    Raises `ValueError` for a folder without an adapter of LoRA or DoRA, and for given settings
    that differ from it.
    """
    try:
        found = read_object(folder / ADAPTER_CONFIG_NAME)
        kept = {
            "method": _find_method(found),
            "rank": int(_read_number(found, "r")),
            "alpha": float(_read_number(found, "lora_alpha")),
            "target_modules": _find_targets(folder, found),
        }
    except (OSError, ValueError) as exc:
        fault = exc.strerror if isinstance(exc, OSError) else exc  # without the path
        raise ValueError(
            f"base_adapter is {folder.name!r}, which cannot be continued: {fault}; expected the "
            f"folder of an adapter of LoRA or DoRA, with {ADAPTER_CONFIG_NAME} and "
            f"{ADAPTER_WEIGHTS_NAME}"
        ) from exc
    own = dict(given or {})
    for name, value in kept.items():
        asked = own.get(name)
        if asked not in (None, *AUTO_TARGETS) and _sort(asked) != _sort(value):
            raise ValueError(
                f"adapter.{name} is {asked!r}, and the adapter to continue has {value!r}: leave "
                f"{name} out"
            )
    if (init := own.get("init", "default")) != "default":
        raise ValueError(
            f"adapter.init is {init!r}, and a continued adapter starts from its own values: leave "
            "init out"
        )
    return {**own, **kept}


def _find_method(settings: Mapping[str, Any]) -> str:
    if settings.get("peft_type") != "LORA":
        raise ValueError(f"its 'peft_type' is {settings.get('peft_type')!r}, expected 'LORA'")
    if settings.get("use_dora") and settings.get("use_rslora"):
        raise ValueError("it combines DoRA and rsLoRA, expected one of them")
    if settings.get("use_dora"):
        return "dora"
    return "rslora" if settings.get("use_rslora") else "lora"


def _read_number(settings: Mapping[str, Any], key: str) -> int | float:
    value = settings.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"its {key!r} is {value!r}, expected a number")
    return value


def _find_targets(folder: Path, settings: Mapping[str, Any]) -> list[str]:
    """Return the ends of the names of the adapted layers.

    PEFT also writes a regular expression, and may limit it to some layers: the tensors show which.
    """
    named = settings.get("target_modules")
    is_limited = any(settings.get(key) for key in ("exclude_modules", "layers_to_transform"))
    if isinstance(named, list) and not is_limited:
        return sorted(map(str, named))
    names = read_file_header(folder / ADAPTER_WEIGHTS_NAME)
    matched = [ADAPTER_TENSOR.fullmatch(name) for name in names]
    return sorted({found["module"] for found in matched if found})


def _sort(value: Any) -> Any:
    return sorted(value) if isinstance(value, list | tuple) else value
