"""The pictures of each page of the application, in both themes, also on a phone.

    python -m benchmarks.pictures --output docs/images

Starts the application with the embedded default, fine-tunes the model, an adapter and a classifier
of questions, evaluates a model, and takes the pictures in Chromium. It takes about fifteen minutes
on two cores. Look at them before you commit them.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from apps.bundled import DEMONSTRATION_MODEL, HANDBOOK_FILE_ID
from benchmarks.browser import open_browser
from benchmarks.serve_peers.server import describe_application

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_TIMEOUT_S = 900.0
_PAGE_TIMEOUT_MS = 120_000
_QUESTION = "When does the workshop open on Saturdays?"
_KINDS = {"When": "a time", "Who": "a person", "Where": "a place"}
_SIZES = {1280: 800, 390: 844}
"""Widths and heights of windows, in pixels."""
_SETTLE_MS = 1500
"""Curves, fonts and transitions are drawn after their data have come."""
_CLOSE_NOTICES_JS = "() => document.querySelectorAll('.toast-wrap').forEach(part => part.remove())"


def main() -> int:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="a folder for the pictures")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pictures-") as folder, open_browser() as browser:
        server = describe_application(Path(folder))
        with server.start(), httpx.Client(base_url=server.url, timeout=_TIMEOUT_S) as client:
            _Photographer(browser, server.url, options.output, client).take_all()
    return 0


class _Photographer:
    """Takes the pictures of one running application."""

    def __init__(self, browser: "Browser", url: str, folder: Path, client: httpx.Client) -> None:
        self._browser = browser
        self._url = url
        self._folder = folder
        self._client = client

    def take_all(self) -> None:
        """Fine-tune, evaluate, and take the pictures when there is something to see."""
        self._finish(self._start("adapter", epochs=3, training={"adapter": {"rank": 32}}))
        cancelled = self._start("second-try", epochs=3)
        self._wait_for_steps(cancelled, 20)
        self._client.post(f"/v1/fine_tuning/jobs/{cancelled}/cancel").raise_for_status()
        run = self._start("handbook", epochs=6)
        self._wait_for_steps(run, 60)
        self._take("run", f"/ui/runs?run={run}", "[data-chart=loss] canvas >> nth=0")
        tuned = self._finish(run)
        self._finish(self._start_classifier())
        evaluation = self._evaluate(tuned)
        ready = {
            "fine-tune": ("/ui/", "#preview mark.ts-learned >> nth=0"),
            "runs": ("/ui/runs", "#run-list tbody tr >> nth=3"),
            "evaluate": ("/ui/evaluate", ".ts-eval-table tbody tr >> nth=0"),
            "evaluation": (f"/ui/evaluate?evaluation={evaluation}", ".ts-eval-row >> nth=0"),
            "models": ("/ui/models", "#models-view h2"),
            "model": (f"/ui/models?model={tuned}", ".ts-lineage"),
            "cluster": ("/ui/cluster", "#cluster-view h2"),
            "api": ("/ui/api", "details.ts-call >> nth=0"),
        }
        for name, (path, part) in ready.items():
            self._take(name, path, part)
        self._take("chat", f"/ui/chat?model={tuned}", "#chat-model input", _ask_chat)
        self._take(
            "compare",
            f"/ui/compare?models={tuned},{DEMONSTRATION_MODEL}",
            "#compare-send",
            _ask_models,
        )
        self._take("classify", "/ui/classify", "#classify-button", _classify)
        self._take("settings", "/ui/", "#setting-epochs", _open_settings)
        curve = "[data-chart=loss] canvas >> nth=0"
        self._take("losses", f"/ui/runs?run={run}", curve, _show_curves)
        self._take("promote", f"/ui/models?model={tuned}", ".ts-lineage", _promote)

    def _take(
        self, name: str, path: str, ready: str, act: "Callable[[Page], None] | None" = None
    ) -> None:
        """Take the pictures of one page, each in a new context, after `act` has used it."""
        for width, height in _SIZES.items():
            for theme in ("light", "dark"):
                context = self._browser.new_context(
                    viewport={"width": width, "height": height},
                    color_scheme=theme,
                )
                context.set_default_timeout(_PAGE_TIMEOUT_MS)
                page = context.new_page()
                page.goto(f"{self._url}{path}")
                page.locator(ready).wait_for(state="visible")
                if act is not None:
                    act(page)
                page.wait_for_timeout(_SETTLE_MS)
                page.evaluate(_CLOSE_NOTICES_JS)
                page.screenshot(path=self._folder / f"{name}-{width}-{theme}.png")
                context.close()
        print(f"{name}: done", file=sys.stderr)

    def _start(self, name: str, epochs: int, training: dict[str, Any] | None = None) -> str:
        body = {
            "model": DEMONSTRATION_MODEL,
            "training_file": HANDBOOK_FILE_ID,
            "suffix": name,
            "hyperparameters": {"n_epochs": epochs},
            "training": training or {},
        }
        return self._create("/v1/fine_tuning/jobs", body)

    def _start_classifier(self) -> str:
        """Start to learn which kind of answer a question of the handbook wants."""
        content = self._client.get(f"/v1/files/{HANDBOOK_FILE_ID}/content").text
        answer = self._client.post(
            "/v1/files",
            files={"file": ("kinds-of-questions.csv", "".join(_label_questions(content)))},
            data={"purpose": "fine-tune"},
        )
        body = {
            "model": DEMONSTRATION_MODEL,
            "training_file": answer.raise_for_status().json()["id"],
            "suffix": "kinds",
            "hyperparameters": {"n_epochs": 2},
            "training": {"task": "sequence_classification"},
        }
        return self._create("/v1/fine_tuning/jobs", body)

    def _evaluate(self, model: str) -> str:
        models = [model, DEMONSTRATION_MODEL]
        body = {"models": models, "file": HANDBOOK_FILE_ID, "max_rows": 45}
        evaluation = self._create("/v1/evaluations", body)
        self._wait_for_end(f"/v1/evaluations/{evaluation}")
        return evaluation

    def _create(self, path: str, body: dict[str, Any]) -> str:
        answer = self._client.post(path, json=body)
        if answer.is_error:
            raise RuntimeError(f"{path} was refused: {answer.text}")
        return str(answer.json()["id"])

    def _finish(self, job: str) -> str:
        """Wait until a job has succeeded; returns the id of its model."""
        ended = self._wait_for_end(f"/v1/fine_tuning/jobs/{job}")
        print(f"{ended['user_provided_suffix']}: {ended['status']}", file=sys.stderr)
        return str(ended["fine_tuned_model"])

    def _wait_for_end(self, path: str) -> dict[str, Any]:
        def has_ended(found: dict[str, Any]) -> bool:
            if found["status"] in ("failed", "cancelled"):
                raise RuntimeError(f"{path} has {found['status']}: {found['error']}")
            return bool(found["status"] == "succeeded")

        return self._wait(path, has_ended)

    def _wait_for_steps(self, job: str, num_steps: int) -> None:
        self._wait(
            f"/v1/fine_tuning/jobs/{job}",
            lambda found: ((found["progress"] or {}).get("step") or 0) >= num_steps,
        )

    def _wait(self, path: str, is_reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            found: dict[str, Any] = self._client.get(path).raise_for_status().json()
            if is_reached(found):
                return found
            time.sleep(1.0)
        raise RuntimeError(f"{path}: not within {_TIMEOUT_S:g} s")


def _label_questions(content: str) -> Iterable[str]:
    """Yield the lines of a CSV file with questions of a file of chats and the kinds of answers."""
    yield "text,label\n"
    for line in content.splitlines():
        question = next(
            message["content"]
            for message in json.loads(line)["messages"]
            if message["role"] == "user"
        )
        kind = _KINDS.get(question.partition(" ")[0])
        if kind and re.fullmatch(r"[^\",\n]+", question):
            yield f"{question},{kind}\n"


def _ask_chat(page: "Page") -> None:
    page.locator("#chat-input textarea").fill(_QUESTION)
    page.locator("#chat-input textarea").press("Enter")
    page.locator("#chat-history .ts-answered").wait_for(state="visible")


def _ask_models(page: "Page") -> None:
    page.locator("#compare-input textarea").fill(_QUESTION)
    page.click("#compare-send")
    page.locator(".ts-answered >> nth=1").wait_for(state="visible")


def _classify(page: "Page") -> None:
    page.wait_for_function("document.querySelector('#classify-model input')?.value")
    page.locator("#classify-text textarea").fill("Where are the spare keys kept?")
    page.click("#classify-button")
    page.locator(".ts-labels li >> nth=0").wait_for(state="visible")


def _open_settings(page: "Page") -> None:
    page.click("#more-settings summary")
    page.evaluate("document.querySelector('#preset').scrollIntoView()")


def _show_curves(page: "Page") -> None:
    page.evaluate("document.querySelector('#run-curves').scrollIntoView()")


def _promote(page: "Page") -> None:
    field = page.get_by_label("Point an alias to this model")
    field.fill("support")
    field.scroll_into_view_if_needed()


if __name__ == "__main__":
    sys.exit(main())
