"""The menus and fields of the page "Fine-tune" in browser tests."""

from playwright.sync_api import Locator, Page


def find_chosen(page: Page, elem_id: str) -> Locator:
    """Find the entry that a menu shows."""
    return page.locator(f"#{elem_id} option:checked")


def choose(page: Page, elem_id: str, name: str) -> None:
    """Choose the first entry of a menu whose text contains a name, once it is offered."""
    entry = page.locator(f"#{elem_id} option", has_text=name).first
    entry.wait_for(state="attached")
    page.locator(f"#{elem_id} select").select_option(entry.get_attribute("value"))


def select(page: Page, name: str, option: str) -> None:
    """Choose a value of a setting."""
    page.locator(f"#setting-{name} select").select_option(option)


def enter(page: Page, elem_id: str, value: str) -> None:
    """Click into a field, which waits until the page accepts input, and replace its text."""
    field = page.locator(f"#{elem_id} textarea, #{elem_id} input")
    field.click()
    field.fill(value)
