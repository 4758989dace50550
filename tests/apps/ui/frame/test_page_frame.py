"""Responses of the page: completed documents, what browsers keep, and addresses without a page."""

import re
from collections.abc import Iterator

import httpx
import pytest

from apps.ui.frame import assets
from apps.ui.settings import UiSettings
from tests.apps.stub_api import LocalServer, StubApi, build_stub
from tests.apps.ui.page_server import serve_page

BROWSER = {"accept": "text/html,application/xhtml+xml"}


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    stub = StubApi()
    with LocalServer(build_stub(stub)) as url, serve_page(UiSettings(api_url=url)) as page_url:
        yield page_url


@pytest.mark.parametrize(
    ("path", "title"),
    [("/", "Fine-tune"), ("/runs", "Runs"), ("/chat", "Chat"), ("/classify", "Classify")],
)
def test_document_has_title_header_and_no_script_of_gradios_for_spaces(
    page: str, path: str, title: str
) -> None:
    html = httpx.get(page + path).text
    assert f"<title>{title} · Tuneserve</title>" in html
    assert html.index("<header") < html.index("<gradio-app")
    assert 'control_page_title="false"' in html
    assert "iframeResizer.contentWindow" not in html
    assert "manifest.json" not in html


def test_documents_are_compressed_and_checked_again(page: str) -> None:
    answer = httpx.get(f"{page}/classify")
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["cache-control"] == "no-cache"
    assert int(answer.headers["content-length"]) < 0.4 * len(answer.content)
    plain = httpx.get(f"{page}/classify", headers={"accept-encoding": "identity"})
    assert int(plain.headers["content-length"]) == len(plain.content)
    assert plain.text == answer.text


def test_browsers_keep_files_whose_address_has_their_hash(page: str) -> None:
    html = httpx.get(f"{page}/").text
    addresses = re.findall(r'(?:src|href)="(?:\./)?((?:assets|page-assets|theme)[^"]+)"', html)
    assert len(addresses) >= 5
    for address in addresses:
        answer = httpx.get(f"{page}/{address}")
        assert answer.status_code == 200, address
        assert "immutable" in answer.headers["cache-control"], address
    own = next(address for address in addresses if address.startswith("page-assets/"))
    for address in ("page-assets/page.js", "page-assets/page.js?v=0", f"{own}&x=1"):
        assert httpx.get(f"{page}/{address}").headers["cache-control"] == "no-cache"
    script = next(address for address in addresses if address.startswith("assets/"))
    for address in ("assets/none.js", f"{script}?v=0", "theme.css", "theme.css?v=0"):
        assert "cache-control" not in httpx.get(f"{page}/{address}").headers


def test_styles_of_the_page_are_one_file_that_is_more_specific_than_those_of_gradio(
    page: str,
) -> None:
    html = httpx.get(f"{page}/runs").text
    (address,) = re.findall(r'href="(page-assets/page\.css[^"]*)"', html)
    answer = httpx.get(f"{page}/{address}")
    assert answer.headers["content-type"].startswith("text/css")
    rules = answer.text
    assert rules.startswith(":root:root:root {\n")
    assert rules.count("{") == rules.count("}")
    assert 0 < rules.index(".ts-notice") < rules.index(".ts-runs-page")
    assert ".ts-header" not in rules
    assert not re.search(r"@(keyframes|font-face|import|charset|property)|:root [{.]", rules[16:])


def test_unknown_names_of_files_are_not_remembered(page: str) -> None:
    before = assets._hash_asset.cache_info().currsize
    for number in range(3):
        assert httpx.get(f"{page}/page-assets/none-{number}.js?v=1").status_code == 404
    assert assets._hash_asset.cache_info().currsize == before


@pytest.mark.parametrize("path", ["/nonsense", "/a/b/c", "/config", "/gradio_api/info"])
def test_unknown_address_has_page_for_browsers_and_text_for_programs(page: str, path: str) -> None:
    answer = httpx.get(page + path, headers=BROWSER)
    assert answer.status_code == 404
    assert "<h1>Page not found</h1>" in answer.text
    base = httpx.URL(str(answer.url)).join(answer.text.partition('<base href="')[2].split('"')[0])
    assert str(base) == f"{page}/"
    for request in (httpx.get(page + path), httpx.post(page + path, headers=BROWSER)):
        assert (request.status_code, request.text) == (404, "not found")


def test_icon_is_served_where_browsers_look(page: str) -> None:
    answer = httpx.get(f"{page}/favicon.ico")
    assert answer.headers["content-type"] == "image/svg+xml"
    assert "<svg" in answer.text


def test_api_page_lists_requests_of_description(page: str) -> None:
    html = httpx.get(f"{page}/api").text
    assert "<code>/v1/fine_tuning/jobs</code>" in html
    assert html.count('class="ts-call"') > 5
    redirect = httpx.get(f"{page}/api/", follow_redirects=True)
    assert str(redirect.url) == f"{page}/api"


def test_api_page_reports_that_api_is_away() -> None:
    with serve_page(UiSettings(api_url="http://127.0.0.1:9")) as url:
        answer = httpx.get(f"{url}/api")
    assert answer.status_code == 503
    assert 'role="alert"' in answer.text
