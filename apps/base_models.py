"""The models that an operator offers to start from, put into the model store."""

import logging
from pathlib import Path

from apps.bundled import find_demonstration_model
from apps.settings import BUNDLED_SOURCE
from serving.model_store import LATEST_ALIAS, ModelStore

logger = logging.getLogger(__name__)

# What a model is made of; pickled weights and code are not even fetched.
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model", "README.md"]


def install_base_models(store: ModelStore, sources: dict[str, str]) -> None:
    """Copy each model that is not in the store yet; the first is `latest` until something is tuned.

    Raises `ValueError` that names the model whose source cannot be had.
    """
    present = {model.id for model in store.list_models()}
    for name, source in sources.items():
        if name in present:
            continue
        logger.info("adding the base model %s from %s", name, source)
        try:
            store.add(find_source(source), name)
        except (OSError, ValueError) as exc:
            raise ValueError(f"base_models: {name!r} cannot be had from {source!r}: {exc}") from exc
    if sources and LATEST_ALIAS not in store.read_aliases():
        store.point_alias(LATEST_ALIAS, next(iter(sources)))


def find_source(source: str) -> Path:
    """Return the folder of a base model, fetching it from the hub where that is its source.

    Raises `OSError` if it cannot be had.
    """
    if source == BUNDLED_SOURCE:
        return find_demonstration_model()
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(source, allow_patterns=_HUB_PATTERNS))
