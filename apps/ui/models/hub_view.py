"""The hub on the page "Models": forms that install and push, and what is in progress, as HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import quote

from apps.client.model_resources import HubPermissions, HubTransfer, Model
from apps.client.resources import Access
from apps.ui import markup
from apps.ui.figures import format_bytes
from apps.ui.models.form_fields import INSTALL, PUSH, FormProblem, find_entered, render_field

WRITE = "models.write"
MAX_TRANSFERS = 5
MAX_PATTERNS = 20
NO_INSTALL = "The operator of this server permits no models of the hub."
NO_PUSH = "The operator of this server permits no repositories of the hub."
STEPS = {
    "listing": "Asking the hub",
    "downloading": "Downloading",
    "checking": "Checking all files",
    "installing": "Installing",
    "uploading": "Uploading",
}
_SETTINGS = {INSTALL: "hub.install", PUSH: "hub.push"}


@dataclass(frozen=True)
class HubForms:
    """What the forms of the hub depend on; `problem` is that of the last attempt."""

    permitted: HubPermissions
    access: Access
    problem: FormProblem | None = None


def render_install_form(forms: HubForms) -> str:
    """Render the form that installs a model; empty if the key may not add models."""
    if WRITE not in forms.access.permissions:
        return ""
    patterns = forms.permitted.install
    if not patterns:
        return _render_section("Install from the hub", _render_refusal("Install", INSTALL))
    problem = forms.problem
    fields = (
        render_field(problem, INSTALL, "source", "Model on the hub", "owner/name", is_needed=True)
        + render_field(problem, INSTALL, "revision", "Branch, tag or commit", "main")
        + render_field(problem, INSTALL, "new_id", "Name here", "The name on the hub")
    )
    note = "The server downloads the model with its own token and checks it like every import."
    return _render_section(
        "Install from the hub",
        f'<form class="ts-model-form" data-action="{INSTALL}">{fields}'
        '<button class="ts-small ts-primary">Install</button></form>'
        f'<p class="ts-muted">{note} {_render_patterns(patterns)}</p>',
    )


def render_push_form(forms: HubForms, model: Model) -> str:
    """Render the form that pushes a model; empty if the key may not push."""
    if WRITE not in forms.access.permissions:
        return ""
    patterns = forms.permitted.push
    if not patterns:
        return _render_section("Push to the hub", _render_refusal("Push", PUSH))
    problem = forms.problem
    is_public = bool(find_entered(problem, PUSH, "public"))
    return _render_section(
        "Push to the hub",
        f'<form class="ts-model-form" data-action="{PUSH}" data-model="{escape(model.id)}">'
        + render_field(problem, PUSH, "repository", "Repository", "owner/name", is_needed=True)
        + '<label class="ts-check"><input type="checkbox" name="public" id="push-public"'
        f"{' checked' if is_public else ''}>Public repository</label>"
        '<button class="ts-small ts-primary">Push</button></form>'
        '<p class="ts-muted">The server uploads all files of the model with its own token. '
        f"{_render_patterns(patterns)}</p>",
    )


def _render_section(title: str, content: str) -> str:
    return f'<section class="ts-hub"><h3>{title}</h3>{content}</section>'


def _render_refusal(label: str, form: str) -> str:
    """Render the button that cannot be used, with the reason and the setting that permits it."""
    reason = NO_INSTALL if form == INSTALL else NO_PUSH
    identity = f"{form}-reason"
    return (
        f'<div class="ts-model-buttons"><button type="button" class="ts-small" disabled '
        f'aria-describedby="{identity}">{label}</button>'
        f'<span id="{identity}" class="ts-muted"><span>{reason}</span> <span>Setting:</span> '
        f'<code translate="no">{_SETTINGS[form]}</code></span></div>'
    )


def _render_patterns(patterns: Sequence[str]) -> str:
    shown = ", ".join(markup.keep(one, "code") for one in patterns[:MAX_PATTERNS])
    more = ", …" if len(patterns) > MAX_PATTERNS else ""
    return f"<span>Permitted:</span> {shown}{more}"


def render_transfers(transfers: Sequence[HubTransfer], access: Access) -> str:
    """Render the newest installations and pushes, with the progress of those in progress."""
    if not transfers:
        return ""
    may_cancel = WRITE in access.permissions
    lines = "".join(_render_transfer(one, may_cancel) for one in transfers[:MAX_TRANSFERS])
    return (
        '<section class="ts-transfers" aria-labelledby="transfers-title">'
        '<p id="transfers-title">Transfers from and to the hub</p>'
        f"<ul>{lines}</ul></section>"
    )


def _render_transfer(transfer: HubTransfer, may_cancel: bool) -> str:
    is_install = transfer.kind == INSTALL
    model = (
        f'<a href="./models?model={quote(transfer.model)}" data-open translate="no">'
        f"{escape(transfer.model)}</a>"
        if transfer.status == "succeeded" or not is_install
        else markup.keep(transfer.model, "b")
    )
    remote = markup.keep(transfer.repository, "b")
    ends = (remote, model) if is_install else (model, remote)
    parts = [
        f'<span class="ts-transfer-ends">{ends[0]} <span aria-hidden="true">→</span> {ends[1]}'
        f"</span>{_render_state(transfer)}"
        f'<span class="ts-muted">{markup.render_moment(transfer.created, "relative")}</span>'
    ]
    if transfer.is_running and may_cancel:
        parts.append(
            f'<button type="button" class="ts-small" data-action="cancel" '
            f'data-transfer="{escape(transfer.id)}">Cancel<span class="ts-hidden" translate="no">'
            f" {escape(transfer.repository)}</span></button>"
        )
    if transfer.url is not None and transfer.url.startswith(("https://", "http://")):
        parts.append(
            f'<a href="{escape(transfer.url)}" rel="noreferrer" translate="no">'
            f"{escape(transfer.url)}</a>"
        )
    if transfer.error is not None:
        parts.append(
            f'<p class="ts-model-problem">{markup.keep_english(transfer.error.message)}</p>'
        )
    return f"<li>{''.join(parts)}</li>"


def _render_state(transfer: HubTransfer) -> str:
    if not transfer.is_running:
        return markup.render_badge(transfer.status)
    word = STEPS.get(transfer.step, transfer.step)
    if not transfer.total_bytes:
        return f"<span>{escape(word)}</span>"
    share = min(1.0, transfer.bytes / transfer.total_bytes)
    amount = f"{format_bytes(transfer.bytes)} of {format_bytes(transfer.total_bytes)}"
    return (
        f'<span>{escape(word)}</span> <progress class="ts-progress" max="1" value="{share:.4f}" '
        f'aria-label="Progress">{share:.0%}</progress> <span>{amount}</span>'
    )
