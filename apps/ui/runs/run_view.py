"""One run: all that its view shows, read from the API as far as the tab does not have it.

Every refresh requests a bounded amount, however long a run is: new events and steps, the newest
evaluation, and the end of the log if it is open.
"""

import asyncio

from apps.client.client import ApiClient
from apps.client.errors import RequestRefusedError
from apps.client.resources import Job
from apps.ui.runs import run_markup
from apps.ui.runs.curves import read_curves
from apps.ui.runs.evaluation import render_evaluation
from apps.ui.runs.merging import AdapterMerger
from apps.ui.runs.run_checkpoints import find_published, render_checkpoints
from apps.ui.runs.run_result import find_result, render_result
from apps.ui.runs.run_settings import read_defaults, render_settings
from apps.ui.runs.view_request import ViewRequest
from apps.ui.tab_state import Content, Known, KnownEvents, TabState

LOG_BYTES = 64_000
LOG_SEARCH_BYTES = 40_000
MAX_EVENTS = 100


async def read_run(
    client: ApiClient, asked: ViewRequest, state: TabState, interval_s: tuple[float, float]
) -> Content:
    """Request one run; `interval_s` are those while it is active, and otherwise.

    Raises `ApiClientError`.
    """
    known = state.known
    job = await client.jobs.get(asked.run)
    outputs, merger = client.job_outputs, AdapterMerger(client)
    (events, curve), (evaluations, checkpoints), (access, model, merge) = await asyncio.gather(
        asyncio.gather(
            read_events(client, job.id, known.events), read_curves(client, job.id, known.curve)
        ),
        asyncio.gather(outputs.list_evaluations(job.id, limit=1), outputs.list_checkpoints(job.id)),
        asyncio.gather(client.access.get(), find_result(client, job), merger.find(job)),
    )
    models = known.models
    if checkpoints and events.events[:1] != known.events.events[:1]:  # an event reports each one
        models = await find_published(client, job.id)
    stage = run_markup.describe_stage(job, events.events)
    permissions = frozenset(access.permissions)
    parts = {
        "notice": "",
        "run": run_markup.render_run(job, stage),
        "run-buttons": run_markup.render_buttons(job, events.events, permissions, merge),
        "run-result": render_result(job, model, access, merge),
        "run-checkpoints": render_checkpoints(job, checkpoints, models, access),
        "run-evaluation": render_evaluation(evaluations),
    }
    if not state.has_part("run-settings"):  # they never change
        parts["run-settings"] = render_settings(job, await read_defaults(client, job))
    shown = [event for event in events.events if event.type != "metrics"]
    parts |= {f"events/{event.id}": run_markup.render_event(event) for event in shown}
    additions: dict[str, object] = {}
    if curve.addition is not None:
        additions["curves"] = curve.addition
    log_end = await _read_log(client, job, asked, known.log_end, additions)
    return Content(
        parts=parts,
        lists={"events": [event.id for event in shown]},
        values={
            "title": run_markup.name_job(job),
            "interval_s": interval_s[0] if job.is_active else interval_s[1],
            "log_matches": await _search_log(client, job, asked),
        },
        additions=additions,
        known=Known(events, curve.end, log_end, models),
    )


async def _read_log(
    client: ApiClient,
    job: Job,
    asked: ViewRequest,
    known_end: int | None,
    additions: dict[str, object],
) -> int | None:
    """Add what the tab does not have of the log's end; return the offset of its last byte."""
    if not asked.has_log:
        return None
    log = await client.job_outputs.read_log_end(job.id, LOG_BYTES)
    end = log.offset + len(log.content)
    is_next = known_end is not None and log.offset <= known_end <= end
    new = log.content[known_end - log.offset :] if is_next and known_end else log.content
    if new or not is_next:
        text = new.decode(errors="replace")
        is_cut = log.offset > 0
        additions["log"] = {"is_whole": not is_next, "is_cut": is_cut, "text": text}
    return end


async def _search_log(client: ApiClient, job: Job, asked: ViewRequest) -> str | None:
    """Return the newest lines of the log with the text that is searched for, None without one."""
    if not asked.has_log or not asked.log_search:
        return None
    return await client.job_outputs.search_log(job.id, asked.log_search, LOG_SEARCH_BYTES)


async def read_events(client: ApiClient, run_id: str, known: KnownEvents) -> KnownEvents:
    """Return the newest events of a run, at most `MAX_EVENTS`; request only those not in `known`.

    Raises `ApiClientError`.
    """
    outputs = client.job_outputs
    if known.run_id == run_id and known.events:
        try:
            newest = known.events[0].id
            new = await outputs.list_events(run_id, MAX_EVENTS, newer_than=newest)
            return KnownEvents(run_id, (*new, *known.events)[:MAX_EVENTS])
        except RequestRefusedError as exc:
            if exc.status != 404:  # the run no longer has this event: a backup was restored
                raise
    return KnownEvents(run_id, tuple(await outputs.list_events(run_id, MAX_EVENTS)))
