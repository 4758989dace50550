"""Rules of accessibility on all pages: axe-core with those of WCAG 2.1 A and AA, in both themes."""

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.e2e.stub_pages import READY, open_page
from tests.e2e.test_page import browser

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.long]

__all__ = ["browser"]

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
MORE_RULES = ["page-has-heading-one", "heading-order", "landmark-one-main", "region", "skip-link"]
"""Rules of axe-core beyond WCAG that the pages follow too."""
OPEN_ALL_JS = """() => {
  for (const details of document.querySelectorAll("details")) details.open = true;
}"""
IS_STEADY_JS = """() => !document.querySelector(".pending, #start-button:disabled,"
  + " .ts-fine-tune-page [aria-busy=true]")
  && !document.getAnimations().some(
  one => one.playState === "running" && one.effect.getTiming().iterations !== Infinity)"""
"""Whether nothing fades in or out, or is about to, which for a moment has other colours."""
GRADIO_FAULTS = {".examples[role=list]": "the examples of a chat are a list without items"}
"""By selector, what is excluded and why: faults of Gradio that we cannot change."""


@pytest.fixture
def address(sample_address: str) -> str:
    return sample_address


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", list(READY))
def test_page_has_no_violation(
    browser: Browser, address: str, path: str, theme: Any, width: int
) -> None:
    page = open_page(browser, address, path, width, color_scheme=theme)
    page.evaluate(OPEN_ALL_JS)
    page.wait_for_function(IS_STEADY_JS)
    context: Any = {"exclude": [[selector] for selector in GRADIO_FAULTS]}
    for rules in ({"type": "tag", "values": RULES}, {"type": "rule", "values": MORE_RULES}):
        found = Axe().run(page, context, {"runOnly": rules}).response["violations"]
        assert [describe(violation) for violation in found] == []
    page.context.close()


def describe(violation: dict[str, Any]) -> dict[str, Any]:
    """Shorten a violation to its rule and its elements."""
    nodes = violation["nodes"][:8]
    return {
        violation["id"]: [
            (node["html"][:150], node["failureSummary"].partition("\n")[2]) for node in nodes
        ]
    }
