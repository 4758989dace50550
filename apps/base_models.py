"""Installation of the operator's base models in the model store."""

import logging
from pathlib import Path

from apps.bundled import find_demonstration_model
from apps.hub.hub_files import HUB_PATTERNS
from apps.settings import BUNDLED_SOURCE
from serving.store.model_names import LATEST_ALIAS
from serving.store.model_store import ModelStore
from storage import durable

logger = logging.getLogger(__name__)


def install_base_models(store: ModelStore, sources: dict[str, str]) -> None:
    """Copy base models that the store lacks; set `latest` to the first language model of them.

    `latest` stays where it is if it is set.

    A name that is taken in the store by something other than a readable model is skipped and
    logged. Raises `ValueError` that names the model whose source is not available.
    """
    present = {model.id for model in store.list_models()}
    for name, source in sources.items():
        if name in present:
            continue
        if store.names.is_taken(name):
            logger.error(
                "base_models: %r is not installed: the store has an entry of this name that is no "
                "readable model; remove models/%s from the storage folder",
                name,
                name,
            )
            continue
        logger.info("adding the base model %s from %s", name, source)
        try:
            folder = find_source(source)
            if source == BUNDLED_SOURCE:  # shipped with the product and checked by its tests
                store.add(folder, name)
            else:
                store.install(folder, name)
        except durable.DamagedFileError:
            logger.exception("base_models: %r is not installed", name)
        except (OSError, ValueError) as exc:
            raise ValueError(f"base_models: {name!r} cannot be had from {source!r}: {exc}") from exc
    try:
        _point_latest(store, list(sources))
    except durable.DamagedFileError:  # models can still be used by their ids
        logger.exception("the alias %r cannot be set", LATEST_ALIAS)


def _point_latest(store: ModelStore, names: list[str]) -> None:
    present = {model.id for model in store.list_models() if model.served_task.answers == "text"}
    first = next((name for name in names if name in present), None)
    if first is not None and LATEST_ALIAS not in store.read_aliases():
        store.point_alias(LATEST_ALIAS, first)


def find_source(source: str) -> Path:
    """Return the folder of a base model, downloading the model from the hub if necessary.

    Raises `OSError` if the model is not available.
    """
    if source == BUNDLED_SOURCE:
        return find_demonstration_model()
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(source, allow_patterns=HUB_PATTERNS))
