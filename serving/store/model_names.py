"""The names of one storage root: model ids and alias names are different from each other."""

import os
from pathlib import Path

from serving.errors import InvalidRequestError, ModelNotFoundError
from serving.store.aliases import AliasBook
from serving.store.stored_model import StoredModel
from storage import durable
from storage.layout import StorageLayout, check_id

LATEST_ALIAS = "latest"
"""The alias that moves to every newly fine-tuned model; generators load its model at start."""


class ModelNames:
    """The ids that models have, and those that new models may have. Thread-safe."""

    def __init__(self, layout: StorageLayout, aliases: AliasBook) -> None:
        self._layout = layout
        self._aliases = aliases

    def is_taken(self, model_id: str) -> bool:
        """Return whether an entry with this name exists, whether or not it is a model."""
        return os.path.lexists(self._layout.model(model_id))

    def check_new_id(self, model_id: str) -> None:
        """Raise `InvalidRequestError` or `FileExistsError` for an id that a model cannot have."""
        check_name(model_id, "model")
        if self.is_taken(model_id):
            raise FileExistsError(f"{model_id!r} is published already; model ids are not reused")
        if model_id == LATEST_ALIAS or model_id in self._aliases.read():
            message = f"{model_id!r} is the name of an alias; choose another model id"
            raise InvalidRequestError(message, param="model")
        if model_id in self._aliases.read_past_models():
            raise FileExistsError(
                f"{model_id!r} was a model that an alias pointed to, and its history would lie; "
                "choose another id"
            )

    def move_in(self, sealed: Path, model_id: str, base: StoredModel | None = None) -> None:
        """Move a model to its id while the lock on the aliases prevents an alias of that name.

        The lock also prevents that the `base` of an adapter is deleted meanwhile. Raises the errors
        of `check_new_id`, and `ModelNotFoundError` if the base was deleted before.
        """
        with self._aliases.change():
            self.check_new_id(model_id)
            if base is not None and not base.exists():
                raise ModelNotFoundError(
                    f"the base model {base.id!r} of adapter {model_id!r} has been deleted; add it "
                    "again first"
                )
            durable.move_directory(sealed, self._layout.model(model_id))


def check_name(name: str, param: str) -> None:
    """Raise `InvalidRequestError` for an invalid name; `param` is the field that it came from."""
    try:
        check_id(name)
    except ValueError as exc:
        raise InvalidRequestError(str(exc), param=param) from exc
