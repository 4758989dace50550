"""The forms of the hub and its transfers as HTML."""

from typing import Any

import pytest

from apps.client.errors import ApiClientError, ApiTimeoutError, RequestRefusedError
from apps.client.model_resources import HubPermissions, HubTransfer, Model, WorkProblem
from apps.client.resources import Access
from apps.ui.models.form_fields import (
    FormProblem,
    describe_refusal,
    locate_problem,
    render_field,
)
from apps.ui.models.hub_view import (
    MAX_TRANSFERS,
    NO_INSTALL,
    NO_PUSH,
    HubForms,
    render_install_form,
    render_push_form,
    render_transfers,
)
from tests.apps.stub_api import HOSTILE

ADMIN = Access(key=None, permissions=("models.read", "models.write"))
READER = Access(key="reader", permissions=("models.read",))
PERMITTED = HubPermissions(install=("Qwen/*", "org/one"), push=("me/*",))
MODEL = Model(id="tuned")


def test_forms_are_those_that_the_operator_and_the_key_permit() -> None:
    forms = HubForms(PERMITTED, ADMIN)
    html = render_install_form(forms) + render_push_form(forms, MODEL)
    for part in ('data-action="install"', 'data-action="push" data-model="tuned"', "Qwen/*"):
        assert part in html
    assert "disabled" not in html
    assert "aria-invalid" not in html

    forms = HubForms(HubPermissions(), ADMIN)
    html = render_install_form(forms) + render_push_form(forms, MODEL)
    assert "<form" not in html
    assert html.count("disabled aria-describedby=") == 2
    for part in (NO_INSTALL, NO_PUSH, "hub.install", "hub.push"):
        assert part in html

    forms = HubForms(PERMITTED, READER)
    assert render_install_form(forms) + render_push_form(forms, MODEL) == ""


@pytest.mark.parametrize(
    ("form", "param", "field"),
    [
        ("install", "source", "source"),
        ("install", "revision", "revision"),
        ("install", "id", "new_id"),
        ("install", None, "source"),
        ("install", "other", "source"),
        ("push", "repository", "repository"),
        ("push", "id", "repository"),
        ("promote", "alias", "alias"),
        ("promote", None, "alias"),
    ],
)
def test_problems_are_located(form: str, param: str | None, field: str) -> None:
    assert locate_problem(form, param) == field


@pytest.mark.parametrize(
    ("exc", "message"),
    [
        (RequestRefusedError(400, "Bad Request", "no such name", param="alias"), "No such name"),
        (RequestRefusedError(409, "Conflict", "it is deleted"), "It is deleted"),
        (RequestRefusedError(403, "Forbidden", "not permitted"), ""),
        (RequestRefusedError(403, "Forbidden", "not 'a/b'", param="repository"), "Not 'a/b'"),
        (RequestRefusedError(429, "Too Many Requests", "later"), ""),
        (ApiTimeoutError("http://api", "no response"), ""),
    ],
)
def test_problem_is_at_a_field_only_if_the_form_is_at_fault(
    exc: ApiClientError, message: str
) -> None:
    problem = describe_refusal("promote", exc, {"alias": "live"})
    assert message in problem.message
    assert bool(problem.message) == bool(message)
    field = render_field(problem, "promote", "alias", "Alias", "latest")
    assert ("aria-invalid" in field) == bool(message)
    assert 'value="live"' in field


def test_refused_form_keeps_what_was_entered_and_has_the_problem_at_its_field() -> None:
    entered = {"source": HOSTILE, "revision": "v1", "new_id": "tiny"}
    problem = FormProblem("install", "new_id", f"{HOSTILE} is taken", entered)
    html = render_install_form(HubForms(PERMITTED, ADMIN, problem))
    assert HOSTILE not in html
    assert 'value="v1"' in html
    assert html.count("aria-invalid") == 1
    _, _, field = html.partition('id="install-id"')
    assert 'aria-describedby="install-id-problem"' in field
    assert 'id="install-id-problem" role="alert"' in field
    assert "aria-invalid" not in render_push_form(HubForms(PERMITTED, ADMIN, problem), MODEL)

    problem = FormProblem("push", "repository", "no", {"repository": "x", "public": "on"})
    html = render_push_form(HubForms(PERMITTED, ADMIN, problem), MODEL)
    assert 'value="x"' in html
    assert " checked" in html
    assert " checked" not in render_push_form(HubForms(PERMITTED, ADMIN), MODEL)


def make_transfer(**changes: Any) -> HubTransfer:
    return HubTransfer(
        **{"id": "transfer-1", "model": "small", "repository": "org/x", "status": "running"}
        | changes
    )


def test_transfers_show_their_progress_and_their_end() -> None:
    running = make_transfer(step="downloading", bytes=1_500_000, total_bytes=3_000_000)
    html = render_transfers([running], ADMIN)
    for part in ("Downloading", 'value="0.5000"', "1.5 MB of 3 MB", 'data-transfer="transfer-1"'):
        assert part in html
    assert "data-open" not in html  # the model does not exist
    assert "<button" not in render_transfers([running], READER)

    html = render_transfers([make_transfer(step="listing")], ADMIN)
    assert "Asking the hub" in html
    assert "<progress" not in html

    html = render_transfers([make_transfer(status="succeeded")], ADMIN)
    assert 'href="./models?model=small" data-open' in html
    assert "<button" not in html

    error = WorkProblem(status=404, message=f"there is no model {HOSTILE}")
    html = render_transfers([make_transfer(status="failed", error=error)], ADMIN)
    assert "Failed" in html
    assert "there is no model" in html
    assert HOSTILE not in html
    assert render_transfers([], ADMIN) == ""


def test_address_of_a_pushed_model_is_a_link_if_it_is_one_of_the_web() -> None:
    pushed = make_transfer(kind="push", status="succeeded", url="https://hub/me/x/commit/1")
    assert '<a href="https://hub/me/x/commit/1" rel="noreferrer"' in render_transfers(
        [pushed], ADMIN
    )
    for url in ("javascript:alert(1)", "data:text/html,x"):
        html = render_transfers([make_transfer(kind="push", status="succeeded", url=url)], ADMIN)
        assert url not in html


def test_only_the_newest_transfers_are_shown() -> None:
    html = render_transfers([make_transfer(id=f"transfer-{n}") for n in range(20)], ADMIN)
    assert html.count("<li>") == MAX_TRANSFERS
    assert 'data-transfer="transfer-0"' in html
