"""Fields of the forms on the page "Models", with the problem of a refused form at its field."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

from apps.client.errors import ApiClientError, RequestRefusedError
from apps.ui import markup
from apps.ui.error_messages import describe_error

INSTALL, PUSH, PROMOTE = "install", "push", "promote"
FORMS = {INSTALL: "source", PUSH: "repository", PROMOTE: "alias"}
"""The forms, and the field that a problem is shown at if the API names no other one."""
_NOT_PERMITTED = (401, 403, 429)
"""Statuses of requests that are refused whatever they contain, unless a parameter is named."""


@dataclass(frozen=True)
class FormProblem:
    """Why a form was refused: the field at fault, the message, and what was entered.

    The message is empty if nothing in the form is at fault.
    """

    form: str
    field_name: str
    message: str
    entered: Mapping[str, str] = field(default_factory=dict)


def describe_refusal(form: str, exc: ApiClientError, entered: Mapping[str, str]) -> FormProblem:
    """Return why the API refused a form.

    Without a message if nothing in the form is at fault: the request failed, or is not permitted.
    """
    if not isinstance(exc, RequestRefusedError) or (
        exc.status in _NOT_PERMITTED and exc.param is None
    ):
        return FormProblem(form, FORMS[form], "", entered)
    return FormProblem(form, locate_problem(form, exc.param), describe_error(exc), entered)


def locate_problem(form: str, param: str | None) -> str:
    """Return the field of a form that the API finds at fault, by default the main one."""
    fields = {"source": "source", "revision": "revision", "id": "new_id"}
    found = fields.get(param or "") if form == INSTALL else None
    return found or FORMS[form]


def find_message(problem: FormProblem | None, form: str, field_name: str) -> str:
    """Return the problem of a field; empty if it has none."""
    if problem is None or (problem.form, problem.field_name) != (form, field_name):
        return ""
    return problem.message


def find_entered(problem: FormProblem | None, form: str, field_name: str, default: str = "") -> str:
    """Return what was entered in a field of a form that was refused; else the default."""
    if problem is None or problem.form != form:
        return default
    return problem.entered.get(field_name, default)


def render_field(
    problem: FormProblem | None,
    form: str,
    name: str,
    label: str,
    example: str,
    *,
    options: str = "",
    is_needed: bool = False,
) -> str:
    """Render a field with what was entered in a refused form; `options` are suggestions."""
    identity = f"{form}-{name.removeprefix('new_')}"
    message = find_message(problem, form, name)
    invalid = f' aria-invalid="true" aria-describedby="{identity}-problem"' if message else ""
    note = (
        f'<p class="ts-model-problem" id="{identity}-problem" role="alert">'
        f"{markup.keep_english(message)}</p>"
        if message
        else ""
    )
    suggestions = f'<datalist id="{identity}-options">{options}</datalist>' if options else ""
    listed = f' list="{identity}-options"' if options else ""
    return (
        f'<div class="ts-model-field"><label for="{identity}">{label}</label>'
        f'<input id="{identity}" name="{name}" maxlength="200" '
        f'value="{escape(find_entered(problem, form, name))}" '
        f'autocomplete="off" spellcheck="false" autocapitalize="none" placeholder="{example}"'
        f"{listed}{' required' if is_needed else ''}{invalid}>{suggestions}{note}</div>"
    )
