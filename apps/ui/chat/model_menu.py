"""The models that a chat can name: aliases, models, adapters, and checkpoints of runs."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.model_resources import Model
from apps.client.resources import Job
from apps.ui.error_messages import describe_error

LATEST_ALIAS = "latest"
MENU_SCRIPT = "model_menu"
"""The script that fills the menu from the document."""
TASK = "causal_lm"
PUBLISH_PERMISSION = "jobs.write"
MAX_RUNS = 20
"""Only the newest runs are asked for their checkpoints: each needs a request."""
UNKNOWN_MODEL_NOTE = "There is no model {!r}; choose one from the menu."
DEMONSTRATION_NOTE = (
    "This is the small demonstration model before any fine-tune: it knows almost nothing, and "
    "nothing about your data. Fine-tune it, then ask again."
)
CHECKPOINT_NOTE = (
    "{} is step {} of the run {}, which is not published. The first question publishes it as a "
    "model: this takes a while, and disk space for as long as the model is kept."
)
FORBIDDEN_NOTE = (
    "{} is a checkpoint that is not published as a model, and your key may not publish it: this "
    "needs a key that may create fine-tunes."
)
_CHECKPOINT_NAME = re.compile(r".+-step-\d+")


@dataclass(frozen=True)
class OfferedCheckpoint:
    """A checkpoint that is not published: the first question to its model publishes it."""

    model_id: str
    run_id: str
    step: int


@dataclass(frozen=True)
class ModelMenu:
    """The entries of a menu of models; checkpoints are added only on demand."""

    models: tuple[Model, ...] = ()
    checkpoints: tuple[OfferedCheckpoint, ...] = ()

    def list_choices(self) -> list[tuple[str, str]]:
        """List the labels and values: aliases, `latest` first, then models, then checkpoints."""
        aliases = [(alias, model.id) for model in self.models for alias in model.aliases]
        aliases.sort(key=lambda pair: (pair[0] != LATEST_ALIAS, pair[0]))
        return [
            *((f"{alias} → {model_id}", alias) for alias, model_id in aliases),
            *((_label_model(model), model.id) for model in self.models),
            *((f"{entry.model_id} (checkpoint)", entry.model_id) for entry in self.checkpoints),
        ]

    def choose_first(self) -> str | None:
        """Return the value of the first entry; None for an empty menu."""
        return next((value for _, value in self.list_choices()), None)

    def describe_first(self, elem_id: str, value: Any, kept_in: str = "") -> Mapping[str, Any]:
        """Return what the script `model_menu.js` gives to the component before it is drawn.

        The chosen value is `value`, unless the conversation in the browser's storage under
        `kept_in` is with another model.
        """
        choices = self.list_choices()
        return {"elem_id": elem_id, "choices": choices, "value": value, "kept_in": kept_in}

    def has(self, name: str) -> bool:
        """Return whether a value is offered."""
        return self.find(name) is not None

    def find(self, name: str) -> Model | None:
        """Return the model with an id or alias, or the model that a checkpoint will be."""
        for model in self.models:
            if name == model.id or name in model.aliases:
                return model
        entry = self.find_checkpoint(name)
        if entry is None:
            return None
        return Model(id=entry.model_id, run_id=entry.run_id, checkpoint_step=entry.step)

    def find_base(self, name: str) -> str | None:
        """Return the model that a model was tuned from, if it is offered, else None."""
        model = self.find(name)
        base = None if model is None else model.base_model or model.tuned_from
        return base if base is not None and self.has(base) else None

    def find_checkpoint(self, name: str) -> OfferedCheckpoint | None:
        """Return the checkpoint of a name unless it is published, else None."""
        return next((entry for entry in self.checkpoints if entry.model_id == name), None)

    def add(self, checkpoints: Sequence[OfferedCheckpoint]) -> "ModelMenu":
        """Return the menu with more checkpoints; those that are published or known are skipped."""
        known = {model.id for model in self.models} | {each.model_id for each in self.checkpoints}
        new = [entry for entry in checkpoints if entry.model_id not in known]
        return ModelMenu(self.models, (*self.checkpoints, *new))

    def update(self, models: Sequence[Model]) -> "ModelMenu":
        """Return the menu with the current models; checkpoints may have become models."""
        return ModelMenu(tuple(models)).add(self.checkpoints)


def _label_model(model: Model) -> str:
    if model.kind == "adapter":
        return f"{model.id} (adapter of {model.base_model or 'an unknown model'})"
    return f"{model.id} (base)" if model.base else model.id


async def list_chat_models(client: ApiClient) -> list[Model]:
    """List the models that generate text; raises `ApiClientError`."""
    return [model for model in await client.models.list_all() if model.task == TASK]


async def load_menu(client: ApiClient, names: Sequence[str] = ()) -> ModelMenu:
    """Return the menu of all models, with the checkpoints among `names`.

    Raises `ApiClientError` if the models cannot be listed; without access to the runs, their
    checkpoints are not found.
    """
    menu = ModelMenu(tuple(await list_chat_models(client)))
    if any(_CHECKPOINT_NAME.fullmatch(name) and not menu.has(name) for name in names):
        try:
            found = await list_checkpoints(client)
        except ApiClientError:  # reported as an unknown model
            found = []
        menu = menu.add([entry for entry in found if entry.model_id in names])
    return menu


async def list_checkpoints(client: ApiClient) -> list[OfferedCheckpoint]:
    """List the checkpoints of the newest runs that generate text; raises `ApiClientError`.

    A run whose checkpoints cannot be listed, because it was deleted meanwhile, is skipped.
    """
    jobs = [job for job in await client.jobs.list_newest(MAX_RUNS) if _may_have_checkpoints(job)]
    found = await asyncio.gather(*(_list_of_run(client, job.id) for job in jobs))
    return [entry for entries in found for entry in entries]


def _may_have_checkpoints(job: Job) -> bool:
    return job.started_at is not None and job.training.get("task", TASK) in (TASK, "preference")


async def _list_of_run(client: ApiClient, job_id: str) -> list[OfferedCheckpoint]:
    try:
        checkpoints = await client.job_outputs.list_checkpoints(job_id)
    except ApiClientError:
        return []
    return [
        OfferedCheckpoint(entry.fine_tuned_model_checkpoint, job_id, entry.step_number)
        for entry in checkpoints
        if entry.fine_tuned_model_checkpoint
    ]


class ModelNote(NamedTuple):
    """What a visitor should know about a chosen model; an empty message if there is nothing."""

    message: str = ""
    kind: str = "info"


async def describe_choice(client: ApiClient, menu: ModelMenu, name: Any) -> ModelNote:
    """Return the note about a chosen model.

    In particular, a question to a checkpoint publishes it, if the visitor's key may do so.
    """
    if not isinstance(name, str):
        return ModelNote()
    if (entry := menu.find_checkpoint(name)) is not None:
        try:
            access = await client.access.get()
        except ApiClientError as exc:
            return ModelNote(describe_error(exc), "error")
        if PUBLISH_PERMISSION not in access.permissions:
            return ModelNote(FORBIDDEN_NOTE.format(name), "error")
        return ModelNote(CHECKPOINT_NOTE.format(name, entry.step, entry.run_id))
    model = menu.find(name)
    is_bare = model is not None and model.base and model.demonstration
    return ModelNote(DEMONSTRATION_NOTE if is_bare else "")
