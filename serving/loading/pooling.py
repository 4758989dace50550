"""How an encoder's vectors of tokens become one vector of a text."""

from pathlib import Path
from typing import Literal

from model_files.json_files import find_object

Pooling = Literal["mean", "cls"]
DEFAULT_POOLING: Pooling = "mean"
POOLING_FILE = "1_Pooling/config.json"
"""Written by sentence-transformers."""
_MODES: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "mean": "mean",
    "cls": "cls",
}


def read_pooling(directory: Path) -> Pooling:
    """Return the pooling of a model: what its sentence-transformers file names, else the mean.

    Raises `ValueError` for another kind of pooling, and for a layer after it.
    """
    if (directory / "2_Dense").exists():
        raise ValueError(
            f"{directory.name!r} has a dense layer after its pooling ('2_Dense'), which is not "
            "supported; use a model without one"
        )
    settings = find_object(directory / POOLING_FILE)
    if settings is None:
        return DEFAULT_POOLING
    named = {key for key, value in settings.items() if key.startswith("pooling_mode_") and value}
    if isinstance(mode := settings.get("pooling_mode"), str):
        named = {mode}
    found = [_MODES.get(name) for name in named]
    if len(found) != 1 or found[0] is None:
        raise ValueError(
            f"{POOLING_FILE} of {directory.name!r} has the pooling {sorted(named)}; expected the "
            f"mean or the CLS token ({', '.join(sorted(_MODES))})"
        )
    return found[0]
