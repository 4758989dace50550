"""The page "Runs": the list of runs, the progress of one, and buttons to pause or cancel it.

Every timer tick requests a bounded amount from the API, however long a run is: the newest jobs,
which name their files, a limited part of the selected run, and those of its events that the tab
does not have yet. The URL names the selected run.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import takewhile
from typing import Any

import gradio as gr

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError, RequestRefusedError
from apps.client.resources import Event, Job
from apps.ui import markup
from apps.ui.error_messages import describe_error
from apps.ui.runs import run_markup
from apps.ui.runs.evaluation import render_evaluation
from apps.ui.runs.loss_curve import render_loss_curve
from apps.ui.runs.merging import AdapterMerger, Merge

ACTIVE_INTERVAL_S = 1.5
IDLE_INTERVAL_S = 8.0
CANCEL_PATIENCE_S = 20.0
LOG_BYTES = 20_000
MAX_EVENTS = 100
CURVE_POINTS = 500

KEEP_SELECTION_JS = """(run) => {
  if (run) history.replaceState(null, "", location.pathname + "?run=" + encodeURIComponent(run));
}"""


@dataclass(frozen=True)
class KnownEvents:
    """The newest events of one run that a tab has, newest first."""

    run_id: str = ""
    events: tuple[Event, ...] = ()


NO_EVENTS = KnownEvents()


@dataclass(frozen=True)
class View:
    """The content of the page at one moment."""

    selected: str = ""
    notice: str = ""
    run_list: str = ""
    run: str = ""
    curve: str = ""
    evaluation: str = ""
    events: str = ""
    log: str = ""
    is_active: bool = False
    is_paused: bool = False
    is_resumable: bool = False
    is_pausing: bool = False
    is_cancelling: bool = False
    merge: Merge | None = None
    interval_s: float = IDLE_INTERVAL_S
    known: KnownEvents = NO_EVENTS

    def to_updates(self) -> list[Any]:
        """Return the outputs of a tick, in the order of the components."""
        return [
            show_notice(self.notice),
            self.selected,
            self.run_list,
            self.run,
            gr.HTML(self.curve, visible=bool(self.curve)),
            gr.HTML(self.evaluation, visible=bool(self.evaluation)),
            self.events,
            self.log,
            gr.Column(visible=bool(self.run)),
            gr.Button(
                "Pausing…" if self.is_pausing else "Pause this run",
                visible=self.is_active,
                interactive=not self.is_pausing and not self.is_cancelling,
            ),
            gr.Button("Resume this run", visible=self.is_resumable, interactive=True),
            gr.Button(
                "Cancelling…" if self.is_cancelling else "Cancel this run",
                visible=self.is_active or self.is_paused,
                interactive=not self.is_cancelling,
            ),
            gr.Button(
                "Merging…" if self.is_merging else "Merge into a complete model",
                visible=self.merge is not None and not self.merge.exists,
                interactive=not self.is_merging,
            ),
            gr.Timer(self.interval_s),
            self.known,
        ]

    @property
    def is_merging(self) -> bool:
        """Whether the adapter of the selected run is being merged."""
        return self.merge is not None and self.merge.is_running


async def read_view(
    client: ApiClient,
    selected: str,
    known: KnownEvents = NO_EVENTS,
    merger: AdapterMerger | None = None,
) -> View:
    """Request the page's content from the API, except the events in `known`.

    `merger` knows which adapters are being merged; none are without it.

    Raises `ApiClientError`.
    """
    jobs = await client.jobs.list_newest()
    try:
        job = await find_job(client, jobs, selected)
    except ApiClientError as exc:
        return View(notice=describe_error(exc), run_list=run_markup.render_run_list(jobs, ""))
    run_list = run_markup.render_run_list(jobs, job.id if job else "")
    if job is None:
        return View(run_list=run_list)
    known, metrics, evaluations, log, merge = await asyncio.gather(
        read_events(client, job.id, known),
        client.job_outputs.list_metrics(job.id, max_points=CURVE_POINTS),
        client.job_outputs.list_evaluations(job.id, limit=1),
        client.job_outputs.read_log(job.id, LOG_BYTES),
        (merger or AdapterMerger(client)).find(job),
    )
    events = known.events
    is_any_active = job.is_active or any(other.is_active for other in jobs)
    return View(
        selected=job.id,
        run_list=run_list,
        run=run_markup.render_run(job, describe_stage(job, events), merge),
        curve=render_loss_curve(metrics) if metrics or job.is_active else "",
        evaluation=render_evaluation(evaluations),
        events=run_markup.render_events(events),
        log=log,
        is_active=job.is_active,
        is_paused=job.is_paused,
        is_resumable=job.resumable,
        is_pausing=job.status == "running" and is_about_to_pause(events),
        is_cancelling=job.is_active and has_cancel_request(events),
        merge=merge,
        interval_s=ACTIVE_INTERVAL_S if is_any_active else IDLE_INTERVAL_S,
        known=known,
    )


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


async def find_job(client: ApiClient, jobs: list[Job], selected: str) -> Job | None:
    """Return the job with an id; without an id a running one, else the newest, else None.

    Raises `ApiClientError` for an unknown id.
    """
    if selected:
        return next((job for job in jobs if job.id == selected), None) or await client.jobs.get(
            selected
        )
    running = [job for job in jobs if job.status == "running"]
    return next(iter(running or jobs), None)


def show_notice(message: str) -> Any:
    """Show an error on top of the page, or hide it if there is none."""
    return gr.HTML(markup.render_notice(message, "error"), visible=bool(message))


def describe_stage(job: Job, events: Sequence[Event]) -> str:
    """Describe the current stage of a run in a short text."""
    if job.waiting_for:
        return f"Waiting: {job.waiting_for}"
    if job.is_paused:
        return "Paused; it resumes from its last checkpoint"
    if job.progress is not None and job.progress.stage:
        return job.progress.stage
    messages = (event.message for event in events if event.type != "metrics")
    return next(messages, markup.STATUS_WORDS.get(job.status, job.status))


def has_cancel_request(events: Sequence[Event]) -> bool:
    """Return whether any client requested a cancel recently and the run was not queued since."""
    earliest = time.time() - CANCEL_PATIENCE_S
    since = takewhile(lambda event: event.code != "queued", events)
    return any(event.code == "cancel_requested" and event.created_at >= earliest for event in since)


def is_about_to_pause(events: Sequence[Event]) -> bool:
    """Return whether any client requested a pause and only steps were reported since."""
    codes = (event.code for event in events if event.type != "metrics")
    return next(codes, None) in ("pause_requested", "pausing")


class _Detail:
    """The components that show the selected run, and the buttons that change it."""

    def __init__(self) -> None:
        self.run = gr.HTML(elem_id="run-detail")
        self.curve = gr.HTML(elem_id="loss-plot", visible=False)
        self.evaluation = gr.HTML(elem_id="run-evaluation", visible=False)
        with gr.Row(elem_id="run-buttons"):
            self.pause = _build_button("Pause this run", "pause-button")
            self.resume = _build_button("Resume this run", "resume-button")
            self.cancel = _build_button("Cancel this run", "cancel-button")
            self.merge = _build_button("Merge into a complete model", "merge-button")
        with gr.Accordion("Events", open=True):
            self.events = gr.HTML(elem_id="run-events")
        with gr.Accordion("Log", open=False):
            self.log = gr.Textbox(
                show_label=False, lines=12, max_lines=12, elem_id="run-log", container=False
            )


def _build_button(label: str, elem_id: str) -> gr.Button:
    return gr.Button(label, elem_id=elem_id, visible=False, size="sm")


class _Page:
    """The components of the page and their event handlers."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self.merger = AdapterMerger(client)
        self.selected = gr.Textbox(visible="hidden", elem_id="selected-run", show_label=False)
        notice = gr.HTML(visible=False, elem_id="runs-notice")
        with gr.Row(equal_height=False):
            with gr.Column(scale=2, min_width=300):
                run_list = gr.HTML(elem_id="run-list")
            with gr.Column(scale=3, min_width=320, visible=False) as column:
                self.detail = _Detail()
        self.timer = gr.Timer(ACTIVE_INTERVAL_S)
        known: gr.State = gr.State(NO_EVENTS)
        self.inputs: list[Any] = [self.selected, known]
        self.outputs: list[Any] = [  # in the order of `View.to_updates`
            *(notice, self.selected, run_list),
            *(self.detail.run, self.detail.curve, self.detail.evaluation),
            *(self.detail.events, self.detail.log, column),
            *(self.detail.pause, self.detail.resume, self.detail.cancel, self.detail.merge),
            *(self.timer, known),
        ]

    async def open_page(self, request: gr.Request) -> list[Any]:
        """Show the run that the URL names."""
        return await self.refresh(request.query_params.get("run", ""), NO_EVENTS)

    async def refresh(self, selected_id: str, known_events: KnownEvents) -> list[Any]:
        """Return the updates of all outputs, or an error and unchanged outputs."""
        try:
            view = await read_view(self._client, selected_id, known_events, self.merger)
            return view.to_updates()
        except ApiClientError as exc:  # the next tick retries
            return [show_notice(describe_error(exc)), *[gr.skip() for _ in self.outputs[1:]]]

    def on_click(
        self, button: gr.Button, word: str, change: Callable[[str], Awaitable[object]]
    ) -> None:
        """Make a button change the selected run, and show `word` until the run has changed."""

        async def change_run(selected_id: str, known_events: KnownEvents) -> list[Any]:
            try:
                await change(selected_id)
            except ApiClientError as exc:
                gr.Warning(escape(describe_error(exc)))
            return await self.refresh(selected_id, known_events)

        def show_busy() -> gr.Button:
            return gr.Button(word, interactive=False)

        button.click(
            show_busy,
            outputs=button,
            show_progress="hidden",
            api_visibility="private",
        ).then(
            change_run, self.inputs, self.outputs, show_progress="hidden", api_visibility="private"
        )


def build_runs_page(client: ApiClient) -> None:
    """Lay out the page and its events inside the current Blocks."""
    page = _Page(client)
    gr.on(
        fn=page.open_page, outputs=page.outputs, show_progress="hidden", api_visibility="private"
    ).then(None, page.selected, js=KEEP_SELECTION_JS)
    page.timer.tick(
        page.refresh, page.inputs, page.outputs, show_progress="hidden", api_visibility="private"
    )
    page.on_click(page.detail.pause, "Pausing…", client.jobs.pause)
    page.on_click(page.detail.resume, "Resuming…", client.jobs.resume)
    page.on_click(page.detail.cancel, "Cancelling…", client.jobs.cancel)
    page.on_click(page.detail.merge, "Merging…", page.merger.merge)
