import re
from pathlib import Path
from typing import get_args

from training.run.event_codes import EventCode

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "http.md"


def test_each_event_code_is_documented() -> None:
    section = DOCUMENTATION.read_text().split("Some events have a `code`")[1].split("\n\n")[1]
    heading, *codes = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert heading == "code"
    assert tuple(codes) == get_args(EventCode)
