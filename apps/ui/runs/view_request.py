"""What the script of the page "Runs" asks for; everything in it comes from a browser."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

MAX_COMPARED = 6
_MAX_CHARACTERS = 200


def _shorten(value: object) -> object:
    return value[:_MAX_CHARACTERS] if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_shorten)]
"""A text that is cut: a visitor may paste one of any length."""
View = Literal["list", "run", "compare"]
ActionName = Literal["pause", "resume", "cancel", "extend", "merge", "promote", "publish", "delete"]


class ViewRequest(BaseModel):
    """The view that a tab shows, and the number of the last message that it has applied."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    view: View = "list"
    run: Text = Field("", description="Id of the run that is shown.")
    compare: tuple[Text, ...] = Field((), max_length=MAX_COMPARED)
    status: Text = ""
    search: Text = ""
    after: Text = Field("", description="Id of the run before the first one in the list.")
    has_log: bool = Field(False, description="Whether the log is open.")
    log_search: Text = ""
    applied: int = 0

    @property
    def place(self) -> str:
        """What is shown, apart from filters: another place starts with an empty view."""
        return f"{self.view} {self.run} {' '.join(self.compare)}"


class ActionRequest(ViewRequest):
    """A change of a run, and the view to update after it."""

    action: ActionName
    checkpoint: Text = ""
    epochs: int | None = Field(None, description="Epochs in all of an extension of the run.")
    max_steps: int | None = Field(None, description="Its steps in all; None without a limit.")
    name: Text = Field("", description="Id of the model to publish; empty: the default one.")


def read_view_request(data: object) -> ViewRequest:
    """Parse a request; an invalid one shows the list of all runs."""
    try:
        return ViewRequest.model_validate(data)
    except ValidationError:
        return ViewRequest()


def read_address(query: Mapping[str, str]) -> ViewRequest:
    """Return what the script asks for first at an address, as `readAddress` in `runs.js`."""
    run = query.get("run", "")
    compared = [part for part in query.get("compare", "").split(",") if part][:MAX_COMPARED]
    view = "run" if run else "compare" if len(compared) > 1 else "list"
    asked = {"view": view, "run": run, "compare": compared if view == "compare" else ()}
    filters = {"status": query.get("state", ""), "search": query.get("search", "")}
    return read_view_request({**asked, **filters})


def is_extension(data: object) -> bool:
    """Return whether a request, which may be invalid, is for an extension."""
    return isinstance(data, dict) and data.get("action") == "extend"


def read_action_request(data: object) -> ActionRequest | None:
    """Parse the request for a change; None for an invalid one, which our script never sends."""
    try:
        return ActionRequest.model_validate(data)
    except ValidationError:
        return None
