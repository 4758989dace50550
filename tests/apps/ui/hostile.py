"""A value that would run a script if it became HTML, and the check that it did not."""

import re

HOSTILE = "<img src=x onerror=alert(1)>\"'"


def find_tags(html: str) -> set[str]:
    return set(re.findall(r"<([a-z]\w*)", html))


def assert_escaped(html: str) -> None:
    """Assert that a hostile value in the HTML is text."""
    assert "img" not in find_tags(html)
    assert HOSTILE not in html
    assert not re.search(r'="[^"]*onerror=alert\(1\)&gt;"\w', html)
