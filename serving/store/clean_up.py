"""Removal of what killed processes left in the folder of models."""

import shutil
from pathlib import Path

from serving.store.aliases import AliasBook
from storage.layout import UPLOAD_PREFIX, StorageLayout
from storage.scratch import remove_abandoned_scratch

ADDED_PREFIX = ".added-"
"""Prefix of a copy that is not a model yet."""
MERGE_PREFIX = ".merge-"
"""Prefix of the folder in which an adapter is merged; the new model's id follows."""
HUB_PREFIX = ".hub-"
"""Prefix of the folder of a transfer from or to the hub; the transfer's id follows."""
DELETED_PREFIX = ".deleted"
"""Prefix of a deleted model that is being removed."""


def clean_up_models(layout: StorageLayout) -> None:
    """Remove what killed processes left behind: deleted models, copies, uploads and downloads.

    Writes the copy of the aliases if it does not exist.
    """
    remove_deleted(layout.models)
    for prefix in (ADDED_PREFIX, MERGE_PREFIX, HUB_PREFIX, UPLOAD_PREFIX):
        remove_abandoned_scratch(layout.models, prefix)
    AliasBook(layout.store.aliases).ensure_copy()


def remove_deleted(models: Path) -> None:
    """Remove the deleted models of all processes from the folder of models."""
    for deleted in models.glob(f"{DELETED_PREFIX}-*"):
        if deleted.is_dir():
            shutil.rmtree(deleted, ignore_errors=True)
        else:
            deleted.unlink(missing_ok=True)
