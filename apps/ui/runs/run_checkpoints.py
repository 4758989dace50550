"""The checkpoints of a run as HTML: their losses, and what can be done with each."""

from collections.abc import Mapping, Sequence
from html import escape
from urllib.parse import quote

from apps.client.client import ApiClient
from apps.client.resources import Access, Job, JobCheckpoint
from apps.ui import markup
from apps.ui.runs.run_markup import WRITE_JOBS
from apps.ui.runs.run_result import READ_WEIGHTS, find_trial, name_archive, render_download


async def find_published(client: ApiClient, run_id: str) -> dict[int, str]:
    """Return the models that were published from checkpoints of a run, by their steps.

    Raises `ApiClientError`.
    """
    return {
        model.checkpoint_step: model.id
        for model in reversed(await client.models.list_all())
        if model.run_id == run_id and model.checkpoint_step is not None
    }


def render_checkpoints(
    job: Job,
    checkpoints: Sequence[JobCheckpoint],
    published: Mapping[int, str],
    access: Access,
) -> str:
    """Render the table of checkpoints, newest first; empty without any."""
    if not checkpoints:
        return ""
    losses = {one.metrics.valid_loss for one in checkpoints} - {None}
    best = min(losses, default=None) if len(losses) > 1 else None  # type: ignore[type-var]
    rows = "".join(
        _render_row(
            job,
            one,
            published.get(one.step_number),
            is_best=best is not None and one.metrics.valid_loss == best,
            access=access,
        )
        for one in checkpoints
    )
    head = "".join(
        f'<th scope="col">{label}</th>'
        for label in ("Step", "Epoch", "Training loss", "Validation loss", "Saved", "Use")
    )
    return (
        '<h3>Checkpoints</h3><div class="ts-table-scroll"><table class="ts-checkpoints"><thead>'
        f"<tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _render_row(
    job: Job, one: JobCheckpoint, model: str | None, *, is_best: bool, access: Access
) -> str:
    badge = ' <span class="ts-badge ts-succeeded">best</span>' if is_best else ""
    cells = (
        _format(one.metrics.epoch, ".2f"),
        _format(one.metrics.train_loss, ".4f"),
        f"{_format(one.metrics.valid_loss, '.4f')}{badge}",
        markup.render_moment(one.created_at, "relative"),
        _render_uses(job, one, model, access),
    )
    shown = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr><th scope="row">{one.step_number:,}</th>{shown}</tr>'


def _render_uses(job: Job, one: JobCheckpoint, model: str | None, access: Access) -> str:
    page, _, label = find_trial(job)
    word = label.partition(" ")[0]
    name = model or one.fine_tuned_model_checkpoint
    title = "" if model else ' title="The first message publishes it as a model"'
    link = (
        f'<a href="./{page}?model={quote(name)}"{title}>{word}'
        f'<span class="ts-sr"> with step {one.step_number}</span></a>'
    )
    if model is not None:
        download = render_download(name_archive(model), "Download", access, READ_WEIGHTS)
        return (
            f'{link} {download} <span class="ts-muted">published as</span> '
            f"<code>{escape(model)}</code>"
        )
    if WRITE_JOBS not in access.permissions:
        return link
    return (
        f'{link} <button type="button" class="ts-link" data-publish="{escape(one.id)}" '
        f'data-model="{escape(name)}">Publish<span class="ts-sr"> step {one.step_number}</span>'
        "</button>"
    )


def _format(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
