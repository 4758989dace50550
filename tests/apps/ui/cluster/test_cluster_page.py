"""How often the page "Cluster" is updated, and who sees the link to Ray's dashboard."""

import gradio as gr
import pytest
from starlette.requests import Request

from apps.ui.cluster.cluster_page import INTERVAL_S, choose_interval, is_on_this_machine

UPDATES_PER_MINUTE = 60 / INTERVAL_S
MAX_BYTES_PER_MINUTE = 150_000


@pytest.mark.parametrize("num_bytes", [100, 10_000, 20_000, 400_000])
def test_open_page_of_any_size_causes_little_traffic(num_bytes: int) -> None:
    interval_s = choose_interval(num_bytes)
    assert interval_s >= INTERVAL_S
    assert num_bytes * 60 / interval_s <= MAX_BYTES_PER_MINUTE


@pytest.mark.parametrize(
    ("address", "headers", "is_local"),
    [
        ("127.0.0.1", {"host": "127.0.0.1:8000"}, True),
        ("127.0.0.1", {"host": "tuneserve.example"}, False),
        ("127.0.0.1", {"host": "localhost", "x-forwarded-for": "192.0.2.7"}, False),
        ("192.0.2.7", {"host": "127.0.0.1:8000"}, False),
    ],
)
def test_dashboard_is_for_browsers_on_this_machine(
    address: str, headers: dict[str, str], is_local: bool
) -> None:
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "headers": encoded, "client": (address, 5000), "query_string": b""}
    assert is_on_this_machine(gr.Request(Request(scope))) == is_local
