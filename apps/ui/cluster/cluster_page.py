"""The page "Cluster": what the machines are used for, updated while it is open."""

from hashlib import sha256
from typing import Any

import gradio as gr
from starlette.requests import Request

from apps.access.keyless import find_foreign_request
from apps.client.client import ApiClient
from apps.client.cluster import ClusterState
from apps.client.errors import ApiClientError
from apps.ui.cluster.cluster_markup import render_cluster
from apps.ui.error_messages import describe_error
from apps.ui.events import QUIET
from apps.ui.frame.first_views import FirstViews, Frame
from apps.ui.frame.page_element import build_frame
from apps.ui.notices import LOADING, show_notice

FRAME = Frame("cluster-view", "<div>${value}</div>", ("cluster",))
INTERVAL_S = 10.0
BYTES_PER_INTERVAL = 12_000
"""A larger page is updated less often, so that an open tab causes little traffic."""


def choose_interval(num_bytes: int) -> float:
    """Return the seconds until the next update of a page of this size."""
    return INTERVAL_S * max(1.0, num_bytes / BYTES_PER_INTERVAL)


def is_on_this_machine(request: gr.Request | Request) -> bool:
    """Return whether the visitor's browser runs on the machine of the page."""
    client = None if request.client is None else (request.client.host, request.client.port)
    return client is not None and find_foreign_request(request.headers, client) is None


class _Page:
    """The components of the page and their event handlers."""

    def __init__(self, client: ApiClient, first_views: FirstViews) -> None:
        self._client = client
        self.notice = gr.HTML(visible=False, elem_id="cluster-notice")
        self.view = build_frame(first_views, "cluster", FRAME, self.read_first, LOADING)
        self.timer = gr.Timer(INTERVAL_S)
        self.digest: gr.State = gr.State("")
        self.outputs = [self.notice, self.view, self.timer, self.digest]

    async def read_first(self, request: Request) -> str:
        """Return the first HTML, for a document."""
        return _render(await self._client.cluster.get(), request)

    async def open_cluster(self, request: gr.Request) -> list[Any]:
        """Show the cluster when the page is opened."""
        return await self.show_cluster("", request)

    async def show_cluster(self, digest: str, request: gr.Request) -> list[Any]:
        """Show the cluster, unless it has not changed; an error leaves what is shown."""
        try:
            state = await self._client.cluster.get()
        except ApiClientError as exc:  # the next tick retries
            return [show_notice(describe_error(exc), "error"), gr.skip(), gr.skip(), ""]
        html = _render(state, request)
        found = sha256(html.encode(errors="surrogatepass")).hexdigest()
        if found == digest:
            return [gr.skip()] * len(self.outputs)
        interval_s = choose_interval(len(html))
        return [show_notice(""), html, gr.Timer(interval_s), found]


def _render(state: ClusterState, request: gr.Request | Request) -> str:
    return render_cluster(state, state.dashboard_url if is_on_this_machine(request) else None)


def build_cluster_page(client: ApiClient, first_views: FirstViews) -> None:
    """Lay out the page and its events inside the current Blocks."""
    page = _Page(client, first_views)
    gr.on(fn=page.open_cluster, outputs=page.outputs, **QUIET)
    page.timer.tick(
        page.show_cluster,
        page.digest,
        page.outputs,
        **QUIET,
    )
