"""Imports between folders point one way, and docs/architecture/ names every module."""

import ast
import re
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

# A module in backticks, as documentation names it.
MODULE_PATH = re.compile(rf"`((?:{'|'.join(sorted(ALLOWED))}|benchmarks|tests)/[\w/.-]*\.py)`")

# The modules that may import private parts of libraries, which they wrap for all others.
ADAPTERS = {
    "apps/access/exposure_check.py": "Serve's controller, which knows the address of its HTTP port",
    "apps/upstream/vllm_ingress.py": "the ingress of Ray's LLM support",
    "training/cluster/agent_port.py": "the port of a Ray cluster's agent",
    "training/cluster/trainer.py": "Ray Train's controller, callbacks and failure policy",
    "training/own_loop/train_functions.py": "the functions of ray.train in a worker",
    "training/deepspeed/cpu_op.py": "the folder in which torch compiles extensions",
}

# The modules that only workers import, once they have set DeepSpeed's accelerator.
WORKERS_ONLY = {"training/pipeline/staged_engine.py", "training/pipeline/staged_model.py"}


def find_imports(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("folder", ALLOWED)
def test_folder_imports_only_allowed_folders(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    forbidden = (set(ALLOWED) | {"tests", "benchmarks"}) - ALLOWED[folder] - {folder}
    wrong = {
        str(file.relative_to(ROOT)): sorted(found)
        for file in files
        if (found := find_imports(file.read_text()) & forbidden)
    }
    assert wrong == {}


def test_page_imports_neither_training_nor_serving() -> None:
    forbidden_names = {"training", "serving", "torch", "transformers", "deepspeed"}
    for file in (ROOT / "apps" / "ui").rglob("*.py"):
        assert not find_imports(file.read_text()) & forbidden_names, file


def test_controllers_do_not_import_deepspeed_at_import_time() -> None:
    for file in set(ROOT.glob("training/**/*.py")) - {ROOT / name for name in WORKERS_ONLY}:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert "deepspeed" not in find_imports(ast.unparse(node)), file


def test_deployments_import_no_slow_libraries() -> None:
    # Three processes import it before the application serves, and torch alone takes seconds.
    slow = ["torch", "transformers", "numba", "datasets", "deepspeed"]
    code = f"import sys, apps.deployments; print([name for name in {slow} if name in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert found.stdout == "[]\n"


def test_each_folder_has_tests() -> None:
    for folder in ALLOWED.keys() - {"examples"}:
        assert list((ROOT / "tests" / folder).rglob("test_*.py")), folder


@pytest.mark.parametrize("folder", sorted(ALLOWED.keys() - {"examples"}))
def test_page_of_folder_names_every_module(folder: str) -> None:
    modules = {
        str(file.relative_to(ROOT))
        for file in (ROOT / folder).rglob("*.py")
        if file.name not in ("__init__.py", "__main__.py")
    }
    page = ROOT / "docs" / "architecture" / f"{folder}.md"
    assert modules
    assert sorted(modules - set(MODULE_PATH.findall(page.read_text()))) == []


def test_modules_that_documents_name_exist() -> None:
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    named = {
        (str(document.relative_to(ROOT)), module)
        for document in documents
        for module in MODULE_PATH.findall(document.read_text())
    }
    assert len(named) > 300
    assert sorted(pair for pair in named if not (ROOT / pair[1]).is_file()) == []


def test_only_adapters_import_private_parts_of_libraries() -> None:
    found = {
        str(file.relative_to(ROOT))
        for folder in ALLOWED
        for file in (ROOT / folder).rglob("*.py")
        if any(is_private(name) for name in list_imported_names(file.read_text()))
    }
    assert found == set(ADAPTERS)


def list_imported_names(source: str) -> set[str]:
    """Return the dotted names of all imported modules and objects."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def is_private(name: str) -> bool:
    """Return whether a part of a dotted name begins with one underscore; `__future__` does not."""
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
