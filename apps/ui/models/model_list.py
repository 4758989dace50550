"""The list of all models as a table, and the aliases with the buttons that move them."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import quote

from apps.client.model_resources import AliasEvent, AliasMove, Model, ModelAlias
from apps.client.resources import Access
from apps.ui import markup
from apps.ui.figures import format_bytes, format_metric

MAX_HISTORY = 50
TASKS = {
    "causal_lm": "Text",
    "sequence_classification": "Text classifier",
    "image_classification": "Image classifier",
    "embedding": "Embeddings",
}
OUTCOMES = {
    "moved": "Served",
    "draining": "Waiting for memory",
    "postponed": "Postponed",
    "refused": "Not loaded",
}
COLUMNS = ("Model", "Base", "Data", "Loss", "Size", "Created")
WRITE, WEIGHTS = "models.write", "models.weights"
NOT_ALLOWED = "Your key may not change models and aliases."


@dataclass(frozen=True)
class HandoverHistory:
    """An alias whose history is shown, and what the generators did at its moves."""

    alias: ModelAlias
    events: tuple[AliasEvent, ...]


def render_models(models: Sequence[Model]) -> str:
    """Render the table of all models, newest first, with a field that filters it."""
    if not models:
        return '<p class="ts-empty">No models yet. <a href="./">Start a fine-tune</a>.</p>'
    head = "".join(_render_head(place, name) for place, name in enumerate(COLUMNS))
    rows = "".join(map(_render_row, models))
    return (
        '<div class="ts-filter"><label for="models-filter">Filter</label>'
        '<input id="models-filter" type="search" autocomplete="off" '
        'placeholder="Name, base, data, run or alias">'
        f'<output id="models-count" for="models-filter">{len(models):,} models</output></div>'
        '<div class="ts-models-scroll"><table class="ts-models" role="table">'
        '<caption class="ts-hidden">Published models</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{rows}</tbody></table></div>'
    )


def _render_head(place: int, name: str) -> str:
    is_number = name in ("Loss", "Size")
    number = ' class="ts-number"' if is_number else ""
    return (
        f'<th scope="col" role="columnheader"{number} aria-sort="none">'
        f'<button type="button" data-sort="{place}">{name}</button></th>'
    )


def _render_row(model: Model) -> str:
    loss_name, loss = find_loss(model) or ("", None)
    shown_loss = "–" if loss is None else f"{format_metric(loss)}<small>{loss_name}</small>"
    aliases = "".join(
        f'<span class="ts-alias" translate="no">{escape(name)}</span>' for name in model.aliases
    )
    kind = "adapter" if model.kind == "adapter" else "base" if model.base else ""
    kind_mark = f'<span class="ts-kind">{kind}</span>' if kind else ""
    task = "" if model.task == "causal_lm" else TASKS.get(model.task, model.task)
    task_mark = f'<span class="ts-kind">{escape(task)}</span>' if task else ""
    found = " ".join(
        (model.id, model.tuned_from or "", model.data or "", model.run_id or "", *model.aliases)
    )
    return (
        f'<tr role="row" data-text="{escape(f"{found} {kind} {task}".lower())}">'
        + _render_cell(
            0,
            model.id,
            f'<a href="./models?model={quote(model.id)}" data-open translate="no">'
            f"{escape(model.id)}</a>"
            f"{kind_mark}{task_mark}{aliases}",
        )
        + _render_cell(1, model.tuned_from or "", markup.keep(model.tuned_from or "–"))
        + _render_cell(2, model.data or "", markup.keep(model.data or "–"))
        + _render_cell(3, "" if loss is None else str(loss), shown_loss)
        + _render_cell(4, str(model.bytes), format_bytes(model.bytes))
        + _render_cell(5, str(-model.created), markup.render_moment(model.created, "relative"))
        + "</tr>"
    )


def _render_cell(place: int, value: str, content: str) -> str:
    number = ' class="ts-number"' if COLUMNS[place] in ("Loss", "Size") else ""
    return (
        f'<td role="cell"{number} data-label="{COLUMNS[place]}" data-value="{escape(value)}">'
        f"{content}</td>"
    )


def find_loss(model: Model) -> tuple[str, float] | None:
    """Return the validation loss of a model, else the training loss, with its name; or None."""
    for name, label in (("eval_loss", "Validation loss"), ("loss", "Training loss")):
        if name in model.metrics:
            return label, model.metrics[name]
    return None


def render_aliases(
    aliases: Sequence[ModelAlias], access: Access, history: HandoverHistory | None
) -> str:
    """Render aliases with the models that they point to, and the history of one."""
    if not aliases:
        return '<p class="ts-empty">No aliases.</p>'
    may_move = WRITE in access.permissions
    note = "" if may_move else f'<p class="ts-muted">{NOT_ALLOWED}</p>'
    items = "".join(_render_alias(alias, may_move=may_move, shown=history) for alias in aliases)
    return f'<ul class="ts-aliases">{items}</ul>{note}'


def _render_alias(alias: ModelAlias, *, may_move: bool, shown: HandoverHistory | None) -> str:
    name, is_shown = escape(alias.id), shown is not None and shown.alias.id == alias.id
    since = f"since {markup.render_moment(alias.history[-1].at)}" if alias.history else ""
    buttons = _render_buttons(alias) if may_move else ""
    history = render_history(shown) if shown is not None and is_shown else ""
    return (
        f'<li><div class="ts-alias-line"><span class="ts-alias" translate="no">{name}</span>'
        f'<span class="ts-alias-target"><span aria-hidden="true">→ </span>'
        f'<a href="./models?model={quote(alias.model)}" data-open translate="no">'
        f"{escape(alias.model)}</a> "
        f'<span class="ts-muted">{since}</span></span>'
        f'<span class="ts-alias-buttons"><button type="button" class="ts-small" '
        f'data-action="history" data-alias="{name}" aria-expanded="{str(is_shown).lower()}">'
        f'History<span class="ts-hidden"> of {markup.keep(alias.id)}</span></button>'
        f"{buttons}</span></div>"
        f"{history}</li>"
    )


def _render_buttons(alias: ModelAlias) -> str:
    name = escape(alias.id)
    target = alias.rollback_to
    if target is None:
        roll_back = (
            '<button type="button" class="ts-small" disabled '
            f'title="{name} has no earlier model">Roll back</button>'
        )
    else:
        roll_back = render_confirmation(
            f'Roll back<span class="ts-hidden" translate="no"> {name}</span>',
            f"{markup.keep(alias.id, 'b')} will point to {markup.keep(target, 'b')} again.",
            f'data-action="roll_back" data-alias="{name}"',
            "Roll back",
        )
    return roll_back + render_confirmation(
        f'Remove<span class="ts-hidden" translate="no"> {name}</span>',
        f"Clients that use the name {markup.keep(alias.id, 'b')} will get an error. "
        "The model is kept.",
        f'data-action="remove" data-alias="{name}"',
        "Remove alias",
    )


def render_confirmation(label: str, text: str, action: str, verb: str) -> str:
    """Render a button that shows what it is about to do, and a second one that does it.

    All arguments are HTML.
    """
    return (
        f'<details class="ts-confirm"><summary class="ts-small">{label}</summary>'
        f'<div class="ts-confirm-box"><p>{text}</p>'
        f'<button type="button" class="ts-small ts-danger" {action}>{verb}</button></div></details>'
    )


def render_history(history: HandoverHistory) -> str:
    """Render the moves of an alias and what the generators did then, newest first."""
    moves = [(move.at, _render_move(move)) for move in history.alias.history]
    events = [(event.at, _render_event(event)) for event in history.events]
    entries = sorted((*moves, *events), key=lambda entry: entry[0])[: -MAX_HISTORY - 1 : -1]
    lines = "".join(
        f"<li>{markup.render_moment(at)}<span>{content}</span></li>" for at, content in entries
    )
    name = escape(history.alias.id)
    return f'<ol class="ts-history" aria-label="History of {name}, newest first">{lines}</ol>'


def _render_move(move: AliasMove) -> str:
    if move.model is None:
        return "<b>Removed</b>"
    verb = "Rolled back to" if move.rollback else "Moved to"
    return f"<b>{verb}</b> {markup.keep(move.model)}"


def _render_event(event: AliasEvent) -> str:
    word = OUTCOMES.get(event.outcome, event.outcome)
    outcome = f'<span class="ts-badge ts-handover-{escape(event.outcome)}">{escape(word)}</span>'
    return f"{outcome} {markup.keep_english(event.message or event.model)}"
