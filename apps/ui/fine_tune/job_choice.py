"""What belongs to a choice of model, data, task, columns and preset: the menus and the settings."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apps.client.client import ApiClient
from apps.client.model_resources import Model
from apps.client.resources import File
from apps.ui.fine_tune.data.column_mapping import (
    COLUMNS,
    DEFAULT_TASK,
    ColumnMenus,
    FileColumns,
    fit_columns,
    map_columns,
    read_columns,
    recall_columns,
)
from apps.ui.fine_tune.data.file_menu import (
    choose_file,
    count_unusable,
    list_file_choices,
    list_files,
    wait_for_check,
)
from apps.ui.fine_tune.fine_tune_request import ChoiceRequest
from apps.ui.fine_tune.former_run import FormerRun, read_former_run
from apps.ui.fine_tune.model_facts import show_model_facts
from apps.ui.fine_tune.setting_form import PRESET_NAMES, Entered, SettingForm

TASK_NAMES = {
    "causal_lm": "Generate text",
    "sequence_classification": "Classify texts",
    "image_classification": "Classify images",
    "preference": "Prefer better answers",
}


@dataclass(frozen=True)
class JobChoice:
    """A choice, and what belongs to it. None: it is as the browser has it already."""

    model: str | None
    data: str | None
    defaults: Mapping[str, Any] | None
    entered: Entered
    menus: ColumnMenus
    preset: str
    models: Sequence[tuple[str, str]] | None = None
    files: Sequence[tuple[str, str]] | None = None
    num_unusable: int = 0
    facts: str | None = None
    former: FormerRun | None = None
    is_being_checked: bool = False

    def to_message(self) -> Mapping[str, Any]:
        """Return what the script of the page shows."""
        message: dict[str, object] = {
            "model": self.model,
            "data": self.data,
            "columns": self.menus.to_message(),
            "is_being_checked": self.is_being_checked,
            "entered": dict(self.entered),
            **self._describe_settings(),
        }
        if self.models is not None:
            message["models"] = self.models
        if self.files is not None:
            message |= {"files": self.files, "num_unusable": self.num_unusable}
        if self.facts is not None:
            message["facts"] = self.facts
        if self.former is not None:
            message["name"] = self.former.name
        return message

    def _describe_settings(self) -> Mapping[str, object]:
        if self.defaults is None:
            return {"task": "", "tasks": [], "presets": [], "preset_note": "", "form": ""}
        form = SettingForm(self.defaults, self.preset)
        return {
            "task": self.defaults["task"],
            "tasks": [(TASK_NAMES.get(task, task), task) for task in self.defaults["tasks"]],
            "presets": [(PRESET_NAMES[name], name) for name in form.presets],
            "preset": form.chosen,
            "preset_note": form.render_preset(),
            "form": form.render(self.entered),
        }


@dataclass(frozen=True)
class _Sources:
    """The lists of models and files, and the run that is started again."""

    models: Sequence[tuple[str, str]] | None = None
    files: Sequence[File] | None = None
    former: FormerRun | None = None


def list_model_choices(models: Sequence[Model]) -> list[tuple[str, str]]:
    """List the entries of the model menu: base models first, of these language models first."""
    ordered = sorted(models, key=lambda model: (not model.base, model.task != DEFAULT_TASK))
    return [(_name_model(model), model.id) for model in ordered]


def _name_model(model: Model) -> str:
    if model.kind == "adapter":
        return f"{model.id} (adapter; a job continues it)"
    return f"{model.id} (base)" if model.base else model.id


async def read_choice(client: ApiClient, asked: ChoiceRequest) -> JobChoice:
    """Read what belongs to a choice; waits a moment for the check of a file that was just uploaded.

    Of a page that is opened, the model is the first one, and the data are the kept ones if they
    still exist, or else the first ones; or both are those of the run that is started again. Raises
    `ApiClientError`.
    """
    changes = asked.changes
    if asked.data and "data" in changes and "page" not in changes:
        await wait_for_check(client, asked.data)
    sources = await _read_sources(client, asked)
    asked = _choose(asked, sources)
    file = await _find_file(client, asked.data, sources)
    found, facts, defaults = await asyncio.gather(
        read_columns(client, file),
        _read_facts(client, asked),
        _read_defaults(client, asked, sources.former, file),
    )
    task = str(defaults["task"]) if defaults else DEFAULT_TASK
    entered, menus = _fit_columns(asked, found, task)
    files = sources.files
    return JobChoice(
        asked.model or None,
        asked.data or None,
        defaults,
        entered,
        menus,
        asked.preset,
        models=sources.models,
        files=None
        if files is None
        else list_file_choices(files, time.time(), asked.data, shows_all=asked.shows_all),
        num_unusable=count_unusable(files or ()),
        facts=facts,
        former=sources.former,
        is_being_checked=file is not None and file.status == "uploaded",
    )


async def _read_facts(client: ApiClient, asked: ChoiceRequest) -> str | None:
    if not asked.changes & {"page", "model"}:
        return None
    return await show_model_facts(client, asked.model)


async def _read_sources(client: ApiClient, asked: ChoiceRequest) -> _Sources:
    """Read the lists that may have changed, and the run that is started again."""
    is_new = "page" in asked.changes
    if not asked.changes & {"page", "data", "check", "files"}:
        return _Sources()
    if not is_new:
        return _Sources(files=await list_files(client))
    models, files = await asyncio.gather(client.models.list_all(), list_files(client))
    choices = list_model_choices(models)
    former = await read_former_run(client, asked.run, choices, files) if asked.run else None
    return _Sources(choices, files, former)


def _choose(asked: ChoiceRequest, sources: _Sources) -> ChoiceRequest:
    """Return the choice with what a list says if nothing that exists is chosen."""
    model, data, former = asked.model, asked.data, sources.former
    if sources.models is not None:
        names = [name for _, name in sources.models]
        model = model if model in names else next(iter(names), "")
    if sources.files is not None:
        data = choose_file(sources.files, data) or ""
    if former is None:
        recalls = asked.recalls and data == asked.data  # the columns are those of the kept file
        return asked.model_copy(update={"model": model, "data": data, "recalls": recalls})
    own = {"entered": former.entered, "columns": {}, "recalls": False}
    return asked.model_copy(
        update={"model": former.model or model, "data": former.data or data, **own}
    )


async def _read_defaults(
    client: ApiClient, asked: ChoiceRequest, former: FormerRun | None, file: File | None
) -> Mapping[str, Any] | None:
    """Return the default settings of the model as plain data; None without a model.

    Another model, and other data, have the task that the rows of the file are for, if the model can
    learn it, and else its own.
    """
    if former is not None and former.defaults is not None:
        return former.defaults
    if not asked.model:
        return None
    task: str | None = asked.task or None
    if asked.changes & {"page", "model", "data", "check"}:
        task = file.check.task if file is not None and file.check else None
        keeps_task = asked.recalls or asked.changes.isdisjoint({"page", "model", "data"})
        task = task or (asked.task if keeps_task else None)
        own = await client.jobs.get_defaults(asked.model)
        if task is None or task == own.task or task not in own.tasks:
            return own.model_dump(by_alias=True)
    return (await client.jobs.get_defaults(asked.model, task)).model_dump(by_alias=True)


async def _find_file(client: ApiClient, data: str, sources: _Sources) -> File | None:
    """Return the chosen file, which is asked for only if it was not listed."""
    if not data:
        return None
    listed = (file for file in sources.files or () if file.id == data)
    return next(listed, None) or await client.files.get(data)


def _fit_columns(
    asked: ChoiceRequest, found: FileColumns, task: str
) -> tuple[Entered, ColumnMenus]:
    """Return what is entered, and the menus, for the columns of the chosen file."""
    entered = asked.entered
    if asked.recalls:
        recalled = recall_columns(task, found.columns, asked.columns, asked.task)
        entered = {**entered, COLUMNS: recalled} if recalled else entered
    elif "columns" in asked.changes and asked.fitted == found.data:
        entered = map_columns(task, entered, asked.columns)
    return fit_columns(found, asked.fitted or None, task, entered)
