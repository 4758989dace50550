"""The result of a run as HTML: its model, and what can be done with it."""

from collections.abc import Collection
from html import escape
from urllib.parse import quote

from apps.client.client import ApiClient
from apps.client.errors import RequestRefusedError
from apps.client.model_resources import Model
from apps.client.resources import Access, Job
from apps.ui import markup
from apps.ui.runs.merging import Merge

ADMINISTER, READ_WEIGHTS, READ_FILES = "models.write", "models.weights", "files.read"
LATEST = "latest"
TEXT_TASKS = frozenset({"causal_lm", "preference"})
"""Tasks whose models generate text; only these can be `latest`."""
VALIDATION_SETTINGS = ("validation_file", "validation_fraction")
"""Settings of a job that hold rows out, or name them."""
_TRIALS = {
    "sequence_classification": ("classify", "classify-with-it", "Classify with it"),
    "image_classification": ("classify", "classify-with-it", "Classify with it"),
}


def find_trial(job: Job) -> tuple[str, str, str]:
    """Return the page where the model of a run is tried, and the id and text of the link to it."""
    return _TRIALS.get(str(job.training.get("task")), ("chat", "chat-with-it", "Chat with it"))


async def find_result(client: ApiClient, job: Job) -> Model | None:
    """Return the model of a run; None if it has none or it was deleted. Raises `ApiClientError`."""
    if job.status != "succeeded" or not job.fine_tuned_model:
        return None
    try:
        return await client.models.get(job.fine_tuned_model)
    except RequestRefusedError as exc:
        if exc.status != 404:
            raise
        return None


def render_result(job: Job, model: Model | None, access: Access, merge: Merge | None) -> str:
    """Render the model of a run that succeeded, with links to try and to download it."""
    if job.status != "succeeded" or not job.fine_tuned_model:
        return ""
    name = job.fine_tuned_model
    if model is None:
        return f'<p class="ts-muted">The model <code>{escape(name)}</code> was deleted.</p>'
    page, elem_id, label = find_trial(job)
    marks = "".join(
        f'<span class="ts-badge ts-succeeded" translate="no">{escape(alias)}</span>'
        for alias in model.aliases
    )
    return (
        f'<h3>Result</h3><p class="ts-result"><code>{escape(name)}</code>{marks}</p>'
        f'<p class="ts-result"><a id="{elem_id}" class="ts-button" '
        f'href="./{page}?model={quote(name)}">{label}</a>'
        f"{_render_comparison(job, name) if page == 'chat' else ''}"
        f"{_render_evaluation_link(job, name) if page == 'chat' else ''}"
        f"{_render_promotion(job, model, access.permissions)}</p>"
        f"{_render_merged_link(merge)}{_render_downloads(job, access)}"
    )


def has_validation_rows(job: Job) -> bool:
    """Return whether a run has ended with rows for a language model that it did not learn."""
    settings = job.training
    sources = (job.validation_file, *map(settings.get, VALIDATION_SETTINGS))
    is_text = settings.get("task", "causal_lm") == "causal_lm"
    return job.status == "succeeded" and is_text and any(sources)


def _render_evaluation_link(job: Job, tuned: str) -> str:
    """Render the link that evaluates the model of a run against the one that it was tuned from."""
    models = markup.join_models([tuned, job.model])
    rows = f"&amp;rows=job:{quote(job.id, safe='')}" if has_validation_rows(job) else ""
    return (
        f'<a id="evaluate-it" class="ts-action" href="./evaluate?models={models}{rows}">'
        "Evaluate</a>"
    )


def _render_comparison(job: Job, tuned: str) -> str:
    """Render the link that compares the model of a run with the one that it was tuned from."""
    models = markup.join_models([job.model, tuned])
    return (
        f'<a id="compare-with-base" class="ts-action" href="./compare?models={models}">'
        f"Compare with {escape(job.model)}</a>"
    )


def _render_promotion(job: Job, model: Model, permissions: Collection[str]) -> str:
    task = str(job.training.get("task") or "causal_lm")
    if LATEST in model.aliases or ADMINISTER not in permissions or task not in TEXT_TASKS:
        return ""
    return (
        '<button type="button" id="promote-button" class="ts-action" data-action="promote" '
        'data-busy="Promoting…">Make it the latest model</button>'
    )


def _render_merged_link(merge: Merge | None) -> str:
    """Render the link to the chat with a merged model; empty if there is none."""
    if merge is None or not merge.exists:
        return ""
    return (
        f'<p class="ts-result"><a id="chat-with-merged" class="ts-button" '
        f'href="./chat?model={quote(merge.model_id)}">Chat with the merged model</a>'
        f"<code>{escape(merge.model_id)}</code></p>"
    )


def name_archive(model_id: str) -> str:
    """Return the address of all files of a model."""
    return f"/v1/models/{quote(model_id)}/archive?format=zip"


def render_download(path: str, label: str, access: Access, permission: str) -> str:
    """Render a link to the API; empty if the key may not follow it, or if one is needed.

    A browser sends no key to the API with a link.
    """
    if access.key is not None or permission not in access.permissions:
        return ""
    return f'<a class="ts-link" href="{escape(path)}" download>{label}</a>'


def _render_downloads(job: Job, access: Access) -> str:
    """Render how to download the model and the metrics: by links and by commands."""
    found = [("Download the model", name_archive(job.fine_tuned_model or ""), READ_WEIGHTS)]
    for file_id in job.result_files[:1]:
        path = f"/v1/files/{quote(file_id)}/content"
        found.append(("Download the metrics", path, READ_FILES))
    found = [one for one in found if one[2] in access.permissions]
    if not found:
        return ""
    links = " ".join(render_download(path, label, access, need) for label, path, need in found)
    key = "" if access.key is None else ' -H "authorization: Bearer $KEY"'
    commands = "\n".join(
        f"curl -OJ{key} '<span data-origin></span>{escape(path)}'" for _, path, _ in found
    )
    return (
        f'<p class="ts-result">{links.strip()}</p>'
        f'<details class="ts-commands"><summary>Download from a terminal</summary>'
        f"<pre><code>{commands}</code></pre></details>"
    )
