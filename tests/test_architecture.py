"""Imports between folders point one way; docs/architecture.md has the table."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOWEST = {"system", "storage", "model_files", "templating"}
ALLOWED: dict[str, set[str]] = {
    "system": set(),
    "storage": {"system"},
    "model_files": {"system", "storage"},
    "templating": {"system", "model_files"},
    "training": LOWEST,
    "serving": LOWEST,
    "apps": LOWEST | {"training", "serving"},
    "examples": set(),
}


def find_imports(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_what_the_table_allows(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    forbidden = (set(ALLOWED) | {"tests", "benchmarks"}) - ALLOWED[room] - {room}
    wrong = {
        str(file.relative_to(ROOT)): sorted(found)
        for file in files
        if (found := find_imports(file.read_text()) & forbidden)
    }
    assert wrong == {}


def test_the_page_speaks_only_http() -> None:
    rooms = {"training", "serving", "torch", "transformers", "deepspeed"}
    for file in (ROOT / "apps" / "ui").rglob("*.py"):
        assert not find_imports(file.read_text()) & rooms, file


def test_controllers_do_not_import_deepspeed_at_import_time() -> None:
    for file in ROOT.glob("training/**/*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert "deepspeed" not in find_imports(ast.unparse(node)), file


def test_the_application_is_imported_without_what_computes() -> None:
    # Three processes import it before the application serves, and torch alone takes seconds.
    slow = ["torch", "transformers", "numba", "datasets", "deepspeed"]
    asked = f"import sys, apps.deployments; print([name for name in {slow} if name in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", asked], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert found.stdout == "[]\n"


def test_every_room_has_its_tests() -> None:
    for room in ALLOWED.keys() - {"examples"}:
        assert list((ROOT / "tests" / room).rglob("test_*.py")), room
