"""What the script of the page "Evaluate" asks for; everything in it comes from a browser."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from apps.client.evaluations import RowFilter
from apps.ui.runs.view_request import Text

MAX_MODELS = 2


class EvaluateRequest(BaseModel):
    """The view that a tab shows, and the number of the last message that it has applied."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    view: Literal["list", "evaluation"] = "list"
    evaluation: Text = Field("", description="Id of the evaluation that is shown.")
    model: Text = Field("", description="The model whose evaluations are listed; empty: all.")
    filter: RowFilter = "all"
    after: Text = Field("", description="Id of the row before the first one that is shown.")
    num_listed: int = Field(20, ge=1, le=1000, description="How many evaluations are listed.")
    reads_menus: bool = Field(False, description="Whether the menus of the form are read again.")
    applied: int = 0

    @property
    def place(self) -> str:
        """What is shown, apart from filters and pages: another place starts with an empty view."""
        return f"{self.view} {self.evaluation}"


class EvaluateAction(EvaluateRequest):
    """A change: start, cancel or delete an evaluation; and the view to update after it."""

    action: Literal["start", "cancel", "delete"]
    models: tuple[Text, ...] = Field((), max_length=MAX_MODELS)
    rows: Text = Field("", description="`file:ID` or `job:ID`.")
    max_rows: Text = ""
    max_tokens: Text = ""


def read_evaluate_request(data: object) -> EvaluateRequest:
    """Parse a request; an invalid one shows the form and the list."""
    try:
        return EvaluateRequest.model_validate(data)
    except ValidationError:
        return EvaluateRequest()


def read_address(query: Mapping[str, str]) -> EvaluateRequest:
    """Return what the script asks for first at an address, as `readAddress` in `evaluate.js`."""
    asked = {name: query.get(name, "") for name in ("evaluation", "model")}
    view = "evaluation" if asked["evaluation"] else "list"
    more = {"view": view, "filter": query.get("filter", "all"), "reads_menus": view == "list"}
    return read_evaluate_request({**asked, **more})


def read_evaluate_action(data: object) -> EvaluateAction | None:
    """Parse the request for a change; None for an invalid one, which our script never sends."""
    try:
        return EvaluateAction.model_validate(data)
    except ValidationError:
        return None
