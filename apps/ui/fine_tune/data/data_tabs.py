"""The data in three tabs: first rows as tokens, all rows, and lengths and faults."""

from collections.abc import Mapping
from typing import Any

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.files import FindingList
from apps.ui import markup
from apps.ui.error_messages import describe_error
from apps.ui.fine_tune.data.preview import render_preview
from apps.ui.fine_tune.data.row_browser import read_rows, render_rows
from apps.ui.fine_tune.data.row_statistics import read_statistics
from apps.ui.fine_tune.fine_tune_request import DataRequest, FieldsRequest
from apps.ui.fine_tune.planned_job import read_form
from apps.ui.fine_tune.setting_form import SettingForm

_NOTHING = {
    "tokens": "Choose a model and data to see the first rows here.",
    "rows": "Choose data to see its rows here.",
    "statistics": "Choose a model and data to see the lengths of the rows here.",
}


async def read_tab(
    client: ApiClient, asked: DataRequest, form: SettingForm | None = None
) -> Mapping[str, Any]:
    """Return what a tab shows: `html`, what the buttons below it need, and whether it has failed.

    A fault, of the API or of a setting, is what the tab shows. `form` has the settings of the model
    and the task, if they were read already.
    """
    if not asked.data or (asked.tab != "rows" and not asked.model):
        return {"html": markup.render_notice(_NOTHING[asked.tab])}
    try:
        if asked.tab == "rows":
            return await _read_row_page(client, asked)
        settings = await _read_row_settings(client, asked, form)
        if asked.tab == "statistics":
            return await _read_statistics(client, asked, settings)
        preview = await client.files.preview(asked.data, asked.model, training=settings or None)
        return {"html": render_preview(preview)}
    except ApiClientError as exc:
        return {"html": markup.render_notice(describe_error(exc), "error"), "is_failed": True}
    except ValueError as exc:
        return {"html": markup.render_notice(str(exc), "error")}


async def _read_row_page(client: ApiClient, asked: DataRequest) -> Mapping[str, Any]:
    search = asked.search.strip()
    page = await read_rows(client, asked.data, asked.after, search)
    return {"html": render_rows(page, search), "next": page.next_after if page.has_more else None}


async def _read_statistics(
    client: ApiClient, asked: DataRequest, settings: Mapping[str, object]
) -> Mapping[str, Any]:
    found, html = await read_statistics(client, asked.model, asked.data, settings)
    return {
        "html": html,
        "is_running": found.is_running,
        "num_faults": found.num_faulty_rows,
        "num_duplicates": found.num_duplicate_rows,
    }


async def download_findings(
    client: ApiClient, asked: FieldsRequest, kind: FindingList
) -> Mapping[str, str]:
    """Return the rows with faults, or equal ones, as a file for the browser.

    Raises `ApiClientError`, and `ValueError` for a setting that cannot be read.
    """
    settings = await _read_row_settings(client, asked)
    text = await client.rows.download_findings(asked.data, asked.model, kind, settings)
    return {"name": f"{asked.data}-{kind}.csv", "text": text}


async def _read_row_settings(
    client: ApiClient, asked: FieldsRequest, form: SettingForm | None = None
) -> Mapping[str, object]:
    """Return the settings in the fields that affect rows."""
    form = form or await read_form(client, asked)
    return form.plan_rows(asked.fields)
