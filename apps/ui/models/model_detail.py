"""One model as HTML: its lineage, its figures, what can be done with it, and all facts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import quote

from apps.client.evaluation_resources import Evaluation
from apps.client.model_resources import Model, ModelAlias, ModelCard
from apps.client.resources import Access
from apps.ui import markup
from apps.ui.figures import format_bytes, format_count, format_metric
from apps.ui.models.form_fields import PROMOTE, render_field
from apps.ui.models.hub_view import HubForms, render_push_form
from apps.ui.models.lineage_picture import render_lineage
from apps.ui.models.model_evaluations import render_evaluations
from apps.ui.models.model_list import (
    NOT_ALLOWED,
    TASKS,
    WEIGHTS,
    WRITE,
    HandoverHistory,
    render_aliases,
    render_confirmation,
)

MAX_VALUE_CHARACTERS = 300
TRIAL_PAGES = {
    "causal_lm": ("chat", "Chat"),
    "sequence_classification": ("classify", "Classify"),
    "image_classification": ("classify", "Classify"),
}
METRIC_NAMES = {"loss": "Training loss", "eval_loss": "Validation loss"}
NO_DOWNLOAD = "Your key may not download or verify models."
_ORIGIN = '<span class="ts-origin">http://127.0.0.1:8000</span>'
_BEARER = ' -H "Authorization: Bearer $TUNESERVE_API_KEY"'


@dataclass(frozen=True)
class ModelContent:
    """The parts of a model that never change."""

    card: ModelCard
    lineage: Mapping[str, object]


@dataclass(frozen=True)
class ModelView:
    """A model with everything that its view shows."""

    model: Model
    content: ModelContent
    models: Sequence[Model]
    aliases: Sequence[ModelAlias]
    access: Access
    forms: HubForms
    history: HandoverHistory | None = None
    evaluations: Sequence[Evaluation] | None = None
    """The newest ones; None if the model cannot be evaluated."""


def render_model(view: ModelView) -> str:
    """Render the view of one model."""
    model = view.model
    kind = "Adapter" if model.kind == "adapter" else "Base model" if model.base else "Model"
    task = TASKS.get(model.task, model.task)
    own = [alias for alias in view.aliases if alias.model == model.id]
    return (
        '<p class="ts-back"><a href="./models" data-open>← All models</a></p>'
        f'<h2 tabindex="-1" translate="no">{escape(model.id)}</h2>'
        f'<p class="ts-muted">{kind} · {escape(task)} · created '
        f"{markup.render_moment(model.created)}</p>"
        f"{_render_figures(view)}{_render_buttons(view)}"
        f"<section><h3>Lineage</h3>{render_lineage(model, view.content.lineage, view.models)}"
        f"</section><section><h3>Aliases</h3>{_render_promotion(view)}"
        f"{render_aliases(own, view.access, view.history)}</section>{_render_evaluations(view)}"
        f"{render_push_form(view.forms, model)}"
        f"<section><h3>Details</h3>{_render_facts(view)}</section>"
    )


def _render_evaluations(view: ModelView) -> str:
    if view.evaluations is None:
        return ""
    content = render_evaluations(view.model.id, view.evaluations)
    return f"<section><h3>Evaluations</h3>{content}</section>"


def _render_figures(view: ModelView) -> str:
    model, card = view.model, view.content.card
    figures = [("Size", format_bytes(model.bytes))]
    if card.num_parameters is not None:
        figures.append(("Parameters", format_count(card.num_parameters)))
    if card.dtype is not None:
        figures.append(("Data type", card.dtype))
    if card.context_length is not None:
        figures.append(("Context", f"{card.context_length:,} tokens"))
    if card.rank is not None:
        figures.append(("Rank", str(card.rank)))
    for name, value in model.metrics.items():
        label = METRIC_NAMES.get(name, name.removeprefix("eval_").replace("_", " ").capitalize())
        figures.append((label, format_metric(value)))
    return markup.render_figures(figures, ["Data type"])


def _render_buttons(view: ModelView) -> str:
    model, permissions = view.model, view.access.permissions
    parts = []
    if model.task in TRIAL_PAGES:
        page, label = TRIAL_PAGES[model.task]
        href = f"./{page}?model={quote(model.id)}"
        parts.append(f'<a class="ts-button" href="{href}">{label}</a>')
    if view.evaluations is not None:
        href = f"./evaluate?model={quote(model.id, safe='')}"
        parts.append(f'<a class="ts-small" href="{href}">Evaluate</a>')
    if WEIGHTS in permissions:
        archive = f"./models/{quote(model.id)}/archive?format="
        parts.append(f'<a class="ts-small" href="{archive}zip" download>Download .zip</a>')
        parts.append(f'<a class="ts-small" href="{archive}tar" download>Download .tar</a>')
        parts.append(_render_button("Verify files", "verify", model.id))
    if WRITE in permissions:
        parts.append(_render_deletion(view))
    reasons = [
        reason
        for permission, reason in ((WEIGHTS, NO_DOWNLOAD), (WRITE, NOT_ALLOWED))
        if permission not in permissions
    ]
    notes = f'<p class="ts-muted">{" ".join(reasons)}</p>' if reasons else ""
    return f'<div class="ts-model-buttons">{"".join(parts)}</div>{notes}'


def _render_button(label: str, action: str, model_id: str) -> str:
    return (
        f'<button type="button" class="ts-small" data-action="{action}" '
        f'data-model="{escape(model_id)}">{label}</button>'
    )


def _render_deletion(view: ModelView) -> str:
    model = view.model
    if (reason := find_user(model, view.models)) is not None:
        return (
            '<button type="button" class="ts-small" disabled aria-describedby="delete-reason">'
            f'Delete</button><span id="delete-reason" class="ts-muted">{escape(reason)}</span>'
        )
    return render_confirmation(
        "Delete",
        f"All files of {markup.keep(model.id, 'b')} ({format_bytes(model.bytes)}) will be deleted. "
        "This cannot be undone.",
        f'data-action="delete" data-model="{escape(model.id)}"',
        "Delete model",
    )


def find_user(model: Model, models: Sequence[Model]) -> str | None:
    """Describe what prevents the deletion of a model, as far as the lists show it."""
    if model.aliases:
        names = ", ".join(model.aliases)
        return f"It can be deleted once no alias points to it: {names}."
    adapters = [one.id for one in models if one.kind == "adapter" and one.base_model == model.id]
    if adapters:
        return f"It is the base of adapters, which must be deleted first: {', '.join(adapters)}."
    return None


def _render_promotion(view: ModelView) -> str:
    """Render the form that points an alias to the model; empty without the permission."""
    if WRITE not in view.access.permissions:
        return ""
    others = [alias.id for alias in view.aliases if alias.model != view.model.id]
    field = render_field(
        view.forms.problem,
        PROMOTE,
        "alias",
        "Point an alias to this model",
        "for example production",
        options="".join(f'<option value="{escape(name)}"></option>' for name in others),
        is_needed=True,
    )
    return (
        f'<form class="ts-model-form" data-action="{PROMOTE}" '
        f'data-model="{escape(view.model.id)}">{field}'
        '<button class="ts-small ts-primary">Promote</button></form>'
    )


def _render_facts(view: ModelView) -> str:
    model, card, lineage = view.model, view.content.card, view.content.lineage
    spec, packages = lineage.get("spec"), lineage.get("packages")
    facts = {
        "Architecture": card.architecture,
        "License": card.license,
        "Base model": model.tuned_from,
        "Base model, content": lineage.get("base_model_revision"),
        "Data": model.data,
        "Data, SHA-256": _read(lineage.get("data"), "sha256"),
        "Run": model.run_id,
        "Step": model.checkpoint_step,
        "Learned": _read(lineage.get("data"), "description"),
    }
    known = {name: value for name, value in facts.items() if value is not None}
    parts = [_render_pairs(known, are_labelled=True)]
    if card.fault:
        parts.append(markup.render_notice(card.fault, "error", of_api=True))
    files = {file.name: format_bytes(file.bytes) for file in card.files}
    parts.append(_fold(f"Files ({len(files)})", _render_pairs(files)))
    if isinstance(spec, Mapping) and spec:
        parts.append(_fold("Training settings", _render_pairs(spec)))
    if isinstance(packages, Mapping) and packages:
        parts.append(_fold("Made with", _render_pairs(packages)))
    parts.append(_fold("Commands", render_commands(view)))
    return "".join(parts)


def _read(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, Mapping) else None


def _fold(title: str, content: str) -> str:
    return f'<details class="ts-fold"><summary>{escape(title)}</summary>{content}</details>'


def _render_pairs(pairs: Mapping[str, object], *, are_labelled: bool = False) -> str:
    """Render names with their values; only names that are labels of this page are translated."""
    rows = "".join(
        f"<div><dt>{escape(name) if are_labelled else markup.keep(name)}</dt>"
        f"{markup.keep(_show_value(value), 'dd')}</div>"
        for name, value in pairs.items()
    )
    return f'<dl class="ts-pairs">{rows}</dl>'


def _show_value(value: object) -> str:
    if value is None or value in ({}, [], ""):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    is_long = len(text) > MAX_VALUE_CHARACTERS
    return f"{text[:MAX_VALUE_CHARACTERS]}…" if is_long else text


def render_commands(view: ModelView) -> str:
    """Render the commands that download, push and merge a model."""
    name = escape(view.model.id)
    bearer = "" if view.access.key is None else _BEARER
    url = f"{_ORIGIN}/v1/models/{quote(view.model.id)}"
    commands = [
        ("Download it", f"tuneserve models export {name} {name}.tar"),
        (
            "Download it with curl",
            f'curl --fail-with-body{bearer} "{url}/archive?format=zip" -o {name}.zip',
        ),
        ("Push it to the Hugging Face hub", f"tuneserve models push {name} OWNER/NAME"),
    ]
    if view.model.kind == "adapter":
        command = f"tuneserve models merge {name} {name}-merged"
        commands.append(("Merge it into a complete model", command))
    return _render_command_list(commands)


def render_import_commands(access: Access) -> str:
    """Render the commands that add a model, or an adapter, that was made elsewhere."""
    bearer = "" if access.key is None else _BEARER
    url = f"{_ORIGIN}/v1/models/NAME"
    commands = [
        ("A folder in Hugging Face format", "tuneserve models add FOLDER NAME"),
        ("An adapter in PEFT's format", "tuneserve models add FOLDER NAME --base MODEL"),
        (
            "A .tar or .zip archive, with curl",
            f'curl --fail-with-body{bearer} -X PUT --data-binary @model.zip "{url}"',
        ),
    ]
    note = '<p class="ts-muted">The operator of this server can also add folders of its disk.</p>'
    return _fold("Add a model", _render_command_list(commands) + note)


def _render_command_list(commands: Sequence[tuple[str, str]]) -> str:
    """Render commands, which are HTML, below what they do."""
    return "".join(
        f'<div class="ts-command"><span>{escape(title)}</span>'
        f'<pre tabindex="0" aria-label="{escape(title)}"><code>{command}</code></pre></div>'
        for title, command in commands
    )
