"""The list of evaluations as a table, newest first."""

from collections.abc import Mapping, Sequence
from html import escape
from urllib.parse import quote

from apps.client.client import ApiClient
from apps.client.errors import RequestRefusedError
from apps.client.evaluation_resources import EvaluatedModel, Evaluation
from apps.ui import markup
from apps.ui.evaluate.evaluate_request import EvaluateRequest
from apps.ui.evaluate.metric_cards import METRICS, format_metric
from apps.ui.evaluate.start_form import read_menus
from apps.ui.tab_state import Content, TabState

EMPTY = "No evaluations yet: choose a model and rows above, then press Start."
EMPTY_OF_MODEL = "No evaluations of this model yet: choose rows above, then press Start."


async def read_evaluation_list(
    client: ApiClient, asked: EvaluateRequest, state: TabState, interval_s: tuple[float, float]
) -> Content:
    """Request the newest evaluations, and the menus of the form unless the tab has them.

    `interval_s` are those while an evaluation is active, and otherwise. Raises `ApiClientError`.
    """
    found = await client.evaluations.list_all(asked.model or None, limit=asked.num_listed + 1)
    shown = found[: asked.num_listed]
    names = await read_file_names(client) if any(one.file for one in shown) else {}
    values: dict[str, object] = {
        "has_more": len(found) > len(shown),
        "interval_s": interval_s[0] if any(one.is_active for one in shown) else interval_s[1],
    }
    if asked.reads_menus or not state.has_value("menus"):
        values["menus"] = await read_menus(client)
    empty = EMPTY_OF_MODEL if asked.model else EMPTY
    return Content(
        parts={
            "notice": "",
            "list-empty": "" if shown else f'<p class="ts-empty">{empty}</p>',
            "list-model": _render_chosen_model(asked.model),
            **{f"evaluations/{one.id}": render_evaluation_line(one, names) for one in shown},
        },
        lists={"evaluations": [one.id for one in shown]},
        values=values,
    )


async def read_file_names(client: ApiClient) -> dict[str, str]:
    """Return the names of files by their ids; without those that the key may not list."""
    try:
        return {file.id: file.filename for file in await client.files.list_all("fine-tune")}
    except RequestRefusedError:
        return {}


def _render_chosen_model(model: str) -> str:
    if not model:
        return ""
    return (
        f'<span class="ts-muted">of {markup.keep(model, "b")}</span> '
        '<a href="./evaluate" data-go="all">Show all</a>'
    )


def render_evaluation_line(evaluation: Evaluation, names: Mapping[str, str]) -> str:
    """Render one evaluation as a row of the table; `names` are those of files."""
    identity = escape(evaluation.id)
    models = evaluation.models
    metrics = "".join(
        f'<td data-label="{metric.label}">'
        f"{_render_lines([format_metric(model, metric) for model in models])}</td>"
        for metric in METRICS
    )
    return (
        f'<tr data-evaluation="{identity}"><th scope="row">'
        f'<a href="./evaluate?evaluation={quote(evaluation.id)}" data-go="evaluation" '
        f'data-evaluation="{identity}">{_render_lines([name_model(one) for one in models])}</a>'
        f'</th><td data-label="State">{render_state(evaluation)}</td>'
        f'<td data-label="Rows" class="ts-eval-source">{_render_source(evaluation, names)}</td>'
        f'{metrics}<td data-label="Created" class="ts-created">'
        f"{markup.render_moment(evaluation.created_at, 'relative')}</td></tr>"
    )


def _render_lines(lines: Sequence[str]) -> str:
    """Render one line for each model, so that names and metrics are beside each other."""
    spans = "".join(
        f'<span class="ts-cut" translate="no" title="{escape(line)}">{escape(line)}</span>'
        for line in lines
    )
    return f'<span class="ts-eval-lines">{spans}</span>'


def name_model(model: EvaluatedModel) -> str:
    """Return the id of a model, after the alias by which it was requested."""
    is_alias = model.requested not in ("", model.model)
    return f"{model.requested} → {model.model}" if is_alias else model.model


def render_state(evaluation: Evaluation) -> str:
    """Render the status, and the share of the rows that are done while it runs."""
    badge = markup.render_badge(evaluation.status)
    share = measure_done(evaluation)
    if evaluation.status != "running" or share is None:
        return badge
    return f"{badge} <span>{share:.0%}</span>"


def measure_done(evaluation: Evaluation) -> float | None:
    """Return the share of the rows that are done; None while it is unknown."""
    if not evaluation.num_rows:
        return None
    return min(1.0, evaluation.num_done / evaluation.num_rows)


def _render_source(evaluation: Evaluation, names: Mapping[str, str]) -> str:
    count = evaluation.max_rows if evaluation.num_rows is None else evaluation.num_rows
    rows = "row" if count == 1 else "rows"
    most = "at most " if evaluation.num_rows is None else ""
    if evaluation.job:
        source = f"validation of {markup.link_run(evaluation.job)}"
    else:
        file_id = evaluation.file or ""
        source = markup.keep(names.get(file_id) or file_id)
    return f'{source}<span class="ts-muted"> · {most}{count:,} {rows}</span>'
