"""The view of one model as HTML."""

from dataclasses import replace
from typing import Any

import pytest

from apps.client.model_resources import CardFile, HubPermissions, Model, ModelCard
from apps.client.resources import Access
from apps.ui.models.hub_view import HubForms
from apps.ui.models.model_detail import (
    NO_DOWNLOAD,
    ModelContent,
    ModelView,
    find_user,
    render_import_commands,
    render_model,
)
from apps.ui.models.model_list import NOT_ALLOWED
from tests.apps.stub_api import HOSTILE

CARD = ModelCard(
    id="tuned", num_parameters=596_049_920, dtype="bf16", context_length=40_960, rank=8
)


def build_view(
    permissions: tuple[str, ...] = (), key: str | None = "k", **changes: Any
) -> ModelView:
    model = Model(**{"id": "tuned", "bytes": 1_192_000_000, **changes})
    access = Access(key=key, permissions=permissions)
    forms = HubForms(HubPermissions(), access)
    return ModelView(model, ModelContent(CARD, {}), [model], [], access, forms)


def test_buttons_are_those_of_the_role() -> None:
    html = render_model(build_view(("models.read", "models.write", "models.weights")))
    for part in ('data-action="verify"', 'data-action="delete"', "Download .zip", "<form"):
        assert part in html
    assert NOT_ALLOWED not in html
    html = render_model(build_view(("models.read",)))
    for part in ('data-action="verify"', 'data-action="delete"', "Download .zip", "<form"):
        assert part not in html
    assert f"{NO_DOWNLOAD} {NOT_ALLOWED}" in html


def test_figures_and_trial_page_suit_the_model() -> None:
    html = render_model(build_view(metrics={"eval_f1_macro": 0.9, "loss": 1.0}))
    for text in ("1.2 GB", "596 M", "bf16", "40,960 tokens", "F1 macro", "Training loss"):
        assert text in html
    assert 'href="./chat?model=tuned"' in html
    assert 'href="./classify?model=tuned"' in render_model(
        build_view(task="sequence_classification")
    )
    html = render_model(build_view(task="embedding"))
    assert "./chat?" not in html
    assert "./classify?" not in html


def test_evaluations_are_shown_where_there_can_be_some() -> None:
    html = render_model(replace(build_view(), evaluations=[]))
    assert '<a class="ts-small" href="./evaluate?model=tuned">Evaluate</a>' in html
    assert "<h3>Evaluations</h3>" in html
    assert "valuat" not in render_model(build_view())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"aliases": ("latest", "live")}, "no alias points to it: latest, live"),
    ],
)
def test_deletion_is_refused_while_alias_points_to_model(
    changes: dict[str, Any], reason: str | None
) -> None:
    view = build_view(("models.write",), **changes)
    assert (reason or "This cannot be undone") in render_model(view)
    assert (find_user(view.model, view.models) is None) == (reason is None)


def test_base_of_adapters_cannot_be_deleted() -> None:
    base = Model(id="base")
    adapter = Model(id="tone", kind="adapter", base_model="base", tuned_from="base")
    tuned = Model(id="other", tuned_from="base", base_model=None)
    assert "tone" in str(find_user(base, [base, adapter]))
    assert find_user(base, [base, tuned]) is None


def test_commands_send_key_only_if_one_is_needed() -> None:
    with_key, without = render_model(build_view()), render_model(build_view(key=None))
    assert "Authorization: Bearer $TUNESERVE_API_KEY" in with_key
    assert "Authorization" not in without + render_import_commands(Access(key=None))
    assert "tuneserve models push tuned OWNER/NAME" in without
    assert "models merge" not in without
    assert "tuneserve models merge tuned tuned-merged" in render_model(build_view(kind="adapter"))


def test_facts_of_lineage_are_escaped_and_limited() -> None:
    model = Model(id=HOSTILE, data=HOSTILE, metrics={HOSTILE: 1.0}, task=HOSTILE)
    card = ModelCard(
        id=HOSTILE, fault=HOSTILE, architecture=HOSTILE, files=(CardFile(name=HOSTILE),)
    )
    lineage = {"spec": {HOSTILE: HOSTILE, "long": "x" * 10_000, "empty": [], "flag": True}}
    access = Access(key=None)
    forms = HubForms(HubPermissions(), access)
    view = ModelView(model, ModelContent(card, lineage), [model], [], access, forms)
    html = render_model(view)
    assert "<img" not in html
    assert "x" * 300 + "…" in html
    assert "x" * 301 not in html
