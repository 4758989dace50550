"""The page's ASGI application: addresses, access, and that it loads nothing from elsewhere."""

import re
from collections.abc import Iterator

import httpx
import pytest
from pydantic import ValidationError
from starlette.datastructures import Headers

from apps.middleware.auth import API_KEY_VARIABLE
from apps.ui.access import find_refusal
from apps.ui.settings import UiSettings
from tests.apps.ui.conftest import LocalServer, StubApi
from tests.apps.ui.page_server import build_page, serve_page


@pytest.fixture
def page(api: StubApi) -> Iterator[str]:
    with serve_page(UiSettings(api_url=api.url)) as url:
        yield url


@pytest.mark.parametrize("path", ["/", "/runs", "/chat", "/runs?run=ftjob-1"])
def test_each_page_has_its_address_below_the_prefix(page: str, path: str) -> None:
    answer = httpx.get(page + path)
    assert answer.status_code == 200
    assert f'"root":"{page}"' in answer.text


def test_a_trailing_slash_leads_to_the_page(page: str) -> None:
    answer = httpx.get(f"{page}/runs/", follow_redirects=True)
    assert (answer.status_code, str(answer.url)) == (200, f"{page}/runs")


def test_nothing_is_loaded_from_elsewhere(page: str) -> None:
    answer = httpx.get(f"{page}/")
    loaded = re.findall(r'(?:src|href)="(https?:[^"]*)"', answer.text)
    assert loaded == []
    assert '"analytics_enabled":false' in answer.text
    assert "img-src 'self' data: blob:" in answer.headers["content-security-policy"]
    assert "@import" not in httpx.get(f"{page}/theme.css").text


def test_with_a_key_the_page_asks_for_it(api: StubApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "secret")
    with LocalServer(build_page(UiSettings(api_url=api.url))) as url:
        refused = httpx.get(f"{url}/theme.css")
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic")
        assert httpx.get(f"{url}/theme.css", auth=("anyone", "wrong")).status_code == 401
        assert httpx.get(f"{url}/theme.css", auth=("anyone", "secret")).status_code == 200


@pytest.mark.parametrize(
    ("headers", "api_key", "status"),
    [
        ({"host": "127.0.0.1:8000"}, None, None),
        ({"host": "localhost"}, None, None),
        ({"host": "evil.example"}, None, 403),
        ({"host": "[broken"}, None, 403),
        ({"host": "localhost", "origin": "http://evil.example"}, None, 403),
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, None, None),
        ({"host": "box", "authorization": "Basic not-base64"}, "k", 401),
        ({"host": "box", "authorization": "Basic eDpr"}, "k", None),
        ({"host": "box", "origin": "http://evil", "authorization": "Basic eDpr"}, "k", 403),
    ],
)
def test_who_may_open_the_page(
    headers: dict[str, str], api_key: str | None, status: int | None
) -> None:
    refusal = find_refusal(Headers(headers), api_key)
    assert (refusal and refusal[0]) == status


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="api_ulr"):
        UiSettings.model_validate({"api_ulr": "http://127.0.0.1:8000"})
