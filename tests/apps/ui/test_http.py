"""The page's ASGI application: addresses, access, and no resources from other sites."""

import re
from collections.abc import Iterator

import httpx
import pytest
from pydantic import ValidationError

from apps.ui.settings import UiSettings
from tests.apps.stub_api import StubApi
from tests.apps.ui.page_server import serve_page


@pytest.fixture
def page(api: StubApi) -> Iterator[str]:
    with serve_page(UiSettings(api_url=api.url)) as url:
        yield url


@pytest.mark.parametrize(
    "path", ["/", "/runs", "/chat", "/classify", "/models", "/cluster", "/runs?run=ftjob-1"]
)
def test_each_page_has_its_url_below_prefix(page: str, path: str) -> None:
    answer = httpx.get(page + path)
    assert answer.status_code == 200
    assert f'"root":"{page}"' in answer.text


def test_trailing_slash_redirects_to_page(page: str) -> None:
    answer = httpx.get(f"{page}/runs/", follow_redirects=True)
    assert (answer.status_code, str(answer.url)) == (200, f"{page}/runs")


def test_page_loads_no_external_resources(page: str) -> None:
    answer = httpx.get(f"{page}/")
    loaded = re.findall(r'(?:src|href)="(https?:[^"]*)"', answer.text)
    assert loaded == []
    assert '"analytics_enabled":false' in answer.text
    assert "img-src 'self' data: blob:" in answer.headers["content-security-policy"]
    assert "@import" not in httpx.get(f"{page}/theme.css").text


def test_unknown_setting_is_refused() -> None:
    with pytest.raises(
        ValidationError, match="^1 validation error for UiSettings\napi_ulr\n +Extra inputs"
    ):
        UiSettings.model_validate({"api_ulr": "http://127.0.0.1:8000"})


def test_own_scripts_are_served_and_nothing_else(page: str) -> None:
    assert "javascript" in httpx.get(f"{page}/page-assets/page.js").headers["content-type"]
    for name in ("page.py", "..", "..%2fpage.py", "none.js"):
        assert httpx.get(f"{page}/page-assets/{name}").status_code == 404
