"""What the script of the page "Fine-tune" asks for; everything in it comes from a browser."""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, Field, Json, ValidationError

from apps.client.files import FindingList
from apps.ui.fine_tune.setting_form import NO_PRESET
from apps.ui.runs.view_request import Text

CHOICE_COOKIE = "tuneserve-choice"
"""The cookie in which the script keeps the chosen file, with its task and columns, as JSON."""
Change = Literal["page", "files", "model", "data", "check", "task", "columns", "preset"]
"""`check`: the server has checked the chosen file meanwhile."""
DataTab = Literal["tokens", "rows", "statistics"]


class _NumberedRequest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    serial: int = Field(0, description="The number that the answer repeats.")
    model: Text = ""
    task: Text = ""
    data: Text = Field("", description="Id of the chosen file.")


Request = TypeVar("Request", bound=_NumberedRequest)


class ChoiceRequest(_NumberedRequest):
    """What is chosen: the answer has the menus and the settings that belong to it."""

    changes: frozenset[Change] = Field(frozenset(), description="What was chosen since the answer.")
    preset: Text = NO_PRESET
    entered: Json[Mapping[str, Any]] = Field(
        default_factory=dict, description="Contents of fields that were changed, by flat name."
    )
    columns: Mapping[str, Text] = Field(
        default_factory=dict, description="The columns in the menus, by the parts of a row."
    )
    fitted: Text = Field("", description="Id of the file that `entered` and `columns` are for.")
    recalls: bool = Field(False, description="Whether `columns` are those of an earlier visit.")
    run: Text = Field("", description="Id of the run whose settings are shown at first.")
    shows_all: bool = Field(False, description="Whether unusable files are listed too.")


class _KeptChoice(BaseModel):
    """The choice of the last visit, as the cookie has it."""

    data: Text = ""
    task: Text = ""
    columns: Mapping[str, Text] = Field(default_factory=dict)


class FieldsRequest(_NumberedRequest):
    """A question about what the fields contain, by flat name."""

    fields: Mapping[str, Any] = Field(default_factory=dict)
    name: str = Field("", description="The name of the result.")
    waits_for_file: bool = Field(False, description="Whether the file was not checked yet.")


class DataRequest(FieldsRequest):
    """What one of the tabs with the data shows."""

    tab: DataTab = "tokens"
    search: Text = ""
    after: Text = Field("", description="Id of the row before the first one that is shown.")


class FineTuneAction(FieldsRequest):
    """What a visitor does: start a job; add or delete a file; write, fill in or save something."""

    action: Literal["start", "add", "delete", "write", "fill_in", "save"]
    path: str = Field("", description="Where Gradio has stored the upload that is added.")
    form: Text = Field("yaml", description="As what the settings are written.")
    origin: Text = Field("", description="The address of the page.")
    text: str = Field("", description="The spec that fills in the settings.")
    findings: FindingList = "faults"


def read_choice_request(data: object) -> ChoiceRequest:
    """Parse a choice; an invalid one is that of a page that has just been opened."""
    return _parse(ChoiceRequest, data, changes=["page"])


def read_address(query: Mapping[str, str], cookies: Mapping[str, str]) -> ChoiceRequest:
    """Return what the script asks for first, as `readAddress` in `fine_tune.js`."""
    kept = _read_cookie(cookies.get(CHOICE_COOKIE, ""))
    if (data := query.get("data")) and kept.data != data:
        kept = _KeptChoice(data=data)
    more = {"changes": ["page"], "run": query.get("from", ""), "recalls": bool(kept.columns)}
    return read_choice_request({**kept.model_dump(), **more})


def _read_cookie(text: str) -> _KeptChoice:
    try:
        return _KeptChoice.model_validate_json(unquote(text))
    except ValidationError:
        return _KeptChoice()


def read_fields_request(data: object) -> FieldsRequest:
    """Parse a question about the fields; an invalid one is about none."""
    return _parse(FieldsRequest, data)


def read_data_request(data: object) -> DataRequest:
    """Parse the request of a tab; an invalid one has no data."""
    return _parse(DataRequest, data)


def read_fine_tune_action(data: object) -> FineTuneAction | None:
    """Parse an action; None for an invalid one, which our script never sends."""
    try:
        return FineTuneAction.model_validate(data)
    except ValidationError:
        return None


def _parse(kind: type[Request], data: object, **contents: Any) -> Request:
    """Parse a request; in place of an invalid one, return one with its number and `contents`."""
    try:
        return kind.model_validate(data)
    except ValidationError:
        serial = data.get("serial") if isinstance(data, Mapping) else None
        number = serial if isinstance(serial, int) else 0
        return kind.model_validate({"serial": number, **contents})
