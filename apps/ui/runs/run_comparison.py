"""Two or more runs compared: their figures, the settings that differ, and their curves."""

import asyncio
from collections.abc import Mapping, Sequence
from html import escape
from urllib.parse import quote

from apps.client.client import ApiClient
from apps.client.resources import Job, Metrics
from apps.ui import markup
from apps.ui.fine_tune.setting_fields import flatten, label_setting
from apps.ui.runs.curves import MAX_COMPARED_POINTS, Column, select_columns
from apps.ui.runs.run_markup import mark_name, name_data, name_job, render_duration
from apps.ui.runs.run_settings import render_value
from apps.ui.runs.view_request import ViewRequest
from apps.ui.tab_state import Content

_COLUMNS = ("loss", "eval_loss", "learning_rate", "trained_tokens", "elapsed_s")
UNEQUAL = "–"


async def read_comparison(
    client: ApiClient, asked: ViewRequest, interval_s: tuple[float, float]
) -> Content:
    """Request the runs that are compared; raises `ApiClientError`."""
    outputs = client.job_outputs
    jobs = await asyncio.gather(*(client.jobs.get(run_id) for run_id in asked.compare))
    curves = await asyncio.gather(
        *(outputs.list_metrics(job.id, max_points=MAX_COMPARED_POINTS) for job in jobs)
    )
    is_active = any(job.is_active for job in jobs)
    return Content(
        parts={
            "notice": "",
            "compare-figures": render_figures(jobs, curves),
            "compare-settings": render_differences(jobs),
        },
        values={
            **{
                f"curve/{number}": _describe(job, metrics)
                for number, (job, metrics) in enumerate(zip(jobs, curves, strict=True))
            },
            "interval_s": interval_s[0] if is_active else interval_s[1],
        },
    )


def _describe(job: Job, metrics: Sequence[Metrics]) -> Mapping[str, str | Mapping[str, Column]]:
    return {"name": name_job(job), "columns": select_columns(metrics, _COLUMNS)}


def render_figures(jobs: Sequence[Job], curves: Sequence[Sequence[Metrics]]) -> str:
    """Render the status and the newest figures of each run, one column per run."""
    lines = {
        "State": [markup.render_badge(job.status) for job in jobs],
        "Model": [markup.keep(job.model) for job in jobs],
        "Data": [markup.keep(name_data(job)) for job in jobs],
        "Steps": [f"{metrics[-1].step:,}" if metrics else UNEQUAL for metrics in curves],
        "Training loss": [_find_last(metrics, "loss") for metrics in curves],
        "Validation loss": [_find_last(metrics, "eval_loss") for metrics in curves],
        "Tokens/s": [_find_last(metrics, "tokens_per_s", ",.0f") for metrics in curves],
        "Duration": [render_duration(job) or UNEQUAL for job in jobs],
    }
    return _render_table("Figures", jobs, lines)


def render_differences(jobs: Sequence[Job]) -> str:
    """Render the settings in which the runs differ, one column per run."""
    settings = [flatten(job.training) for job in jobs]
    keys = dict.fromkeys(key for values in settings for key in values)
    lines = {
        escape(label_setting(key)): [render_value(values.get(key)) for values in settings]
        for key in keys
        if any(values.get(key) != settings[0].get(key) for values in settings)
    }
    if not lines:
        return '<h3>Settings that differ</h3><p class="ts-empty">All settings are the same.</p>'
    return _render_table("Settings that differ", jobs, lines)


def _render_table(title: str, jobs: Sequence[Job], lines: Mapping[str, Sequence[str]]) -> str:
    head = "".join(
        f'<th scope="col"><i class="ts-swatch ts-swatch-{number}" aria-hidden="true"></i>'
        f'<a href="./runs?run={quote(job.id)}" data-go="run" data-run="{escape(job.id)}"'
        f"{mark_name(job)}>{escape(name_job(job))}</a></th>"
        for number, job in enumerate(jobs)
    )
    rows = "".join(
        f'<tr><th scope="row">{label}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for label, cells in lines.items()
    )
    return (
        f'<h3>{title}</h3><div class="ts-table-scroll"><table class="ts-compared"><thead><tr>'
        f"<td></td>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _find_last(metrics: Sequence[Metrics], name: str, form: str = ".4f") -> str:
    values = [entry.raw.get(name) for entry in metrics]
    numbers = [value for value in values if isinstance(value, int | float)]
    return format(numbers[-1], form) if numbers else UNEQUAL
