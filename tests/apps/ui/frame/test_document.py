"""Documents: what a browser gets before any script has run."""

import re

import gradio

from apps.ui.frame.document import CONTENT_MARK, complete_document, render_document
from apps.ui.frame.first_views import Frame
from tests.apps.ui.hostile import HOSTILE, assert_escaped

GRADIO = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8" /><base href="./" />'
    '<link rel="manifest" href="/manifest.json" /><script>window.gradio_config = '
    '{"theme_hash":"0a1b"};</script><script>script.src = "iframeResizer.contentWindow.min.js"'
    '</script></head><body style="margin: 0;"><gradio-app control_page_title="true"></gradio-app>'
)


def test_gradios_document_is_completed() -> None:
    html = complete_document(GRADIO, "runs")
    assert html.index("<base") < html.index("<title>Runs · Tuneserve</title>")
    assert html.index("<header") < html.index("<gradio-app")
    assert 'href="./runs" aria-current="page"' in html
    assert 'href="theme.css?v=0a1b"' in html  # the address that Gradio's script requests too
    assert 'control_page_title="false"' in html
    assert "manifest" not in html
    assert "iframeResizer" not in html
    assert "gradio_config" in html


def test_frame_is_where_gradio_shows_it_and_its_scripts_come_first() -> None:
    frame = Frame("runs-page", "<div>the frame</div>", ("tab", "runs"))
    start = f'{GRADIO}<script type="module" src="a.js">'
    html = complete_document(start, "runs", frame, frame.list_scripts())
    page = html.partition("<body")[2]
    assert page.index("<header") < page.index("the frame") < page.index("<gradio-app")
    assert page.index("the frame") < page.index(CONTENT_MARK) < page.index("<gradio-app")
    assert page.count("<main ") == page.count("<h1 ") == page.count("the frame") == 1
    assert f"gradio-container-{gradio.__version__.replace('.', '-')}" in page
    scripts = re.findall(r'<script src="page-assets/(\w+)\.js[^>]* defer', html)
    assert scripts == ["translate", "page", "frames", "tab", "runs"]
    assert html.index("page-assets/runs.js") < html.index('type="module"')


def test_document_without_a_frame_has_a_place_for_what_its_script_needs() -> None:
    html = complete_document(GRADIO, "chat", scripts=["model_menu.js"])
    page = html.partition("<body")[2]
    assert page.index("<header") < page.index(CONTENT_MARK) < page.index("<gradio-app")
    assert "ts-first-view" not in page
    assert "page-assets/model_menu.js" in html.partition("<body")[0]


def test_theme_follows_the_style_of_gradio() -> None:
    html = complete_document(GRADIO.replace("</head>", '<link href="index.css"></head>'), "runs")
    assert html.index("index.css") < html.index("theme.css") < html.index("</head>")
    assert html.count("theme.css") == 1


def test_script_with_attributes_is_removed_and_the_others_stay() -> None:
    html = complete_document(GRADIO.replace("<script>script.src", "<script async>script.src"), "")
    assert "iframeResizer" not in html
    assert "gradio_config" in html


def test_mark_outside_of_a_script_removes_nothing() -> None:
    html = complete_document(f"{GRADIO}<p>iframeResizer.contentWindow</p>", "")
    assert "<p>iframeResizer.contentWindow</p>" in html
    other = GRADIO.replace("iframeResizer.contentWindow.min.js", "")
    html = complete_document(f"{other}<p>iframeResizer.contentWindow</p>", "")
    assert "<p>iframeResizer.contentWindow</p>" in html
    assert "gradio_config" in html


def test_plain_document_is_escaped_and_marks_no_page() -> None:
    html = render_document(HOSTILE, None, "<p>content</p>", "../")
    assert_escaped(html.partition("<body>")[2])
    assert "aria-current" not in html
    assert '<base href="../">' in html
    assert html.count("<h1>") == html.count("<main ") == html.count("<header ") == 1
