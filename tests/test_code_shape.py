"""Limits on the size and shape of the code; `pytest -s tests/test_code_shape.py` prints figures.

Functions are measured from `def` to their last line, docstring included.
"""

import ast
import statistics
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.test_architecture import ALLOWED

ROOT = Path(__file__).parent.parent
FOLDERS = sorted(ALLOWED.keys() - {"examples"})
MAX_MODULES = 15
MAX_LINES = 400
MAX_METHODS = 15
MAX_MEDIAN_FUNCTION_LINES = 10
MAX_UNTYPED_IN_APPS = 40


@cache
def parse_modules() -> dict[str, tuple[Path, ast.Module]]:
    """Return the modules of the product by their dotted names."""
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    assert files
    return {name_module(file): (file, ast.parse(file.read_text())) for file in files}


def name_module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def find_imports(name: str, file: Path, tree: ast.Module) -> Iterator[str]:
    """Yield what a module needs while it is imported: modules, and the packages around them."""
    modules = parse_modules()
    for node in list_import_time_nodes(tree):
        if isinstance(node, ast.Import):
            imported_names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            base = node.module or ""
            imported_names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for one in imported_names:
            parts = one.split(".")
            for length in range(1, len(parts) + 1):
                if (found := ".".join(parts[:length])) in modules:
                    yield found


def list_import_time_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the statements that run when a module is imported, except for annotations' imports."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        pending.extend(ast.iter_child_nodes(node))


def test_folders_have_few_modules() -> None:
    sizes: dict[Path, int] = {}
    for file, _ in parse_modules().values():
        sizes[file.parent] = sizes.get(file.parent, 0) + (file.name != "__init__.py")
    print()
    for folder, size in sorted(sizes.items()):
        print(f"{folder.relative_to(ROOT)}: {size} modules")
    assert {str(f.relative_to(ROOT)): n for f, n in sizes.items() if n > MAX_MODULES} == {}


def test_files_are_short() -> None:
    lengths = {
        str(file.relative_to(ROOT)): file.read_text().count("\n")
        for file, _ in parse_modules().values()
    }
    for folder in FOLDERS:
        total = sum(length for path, length in lengths.items() if path.startswith(f"{folder}/"))
        print(f"{folder}: {total} lines")
    print(f"longest file: {max(lengths.values())} lines")
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_classes_have_few_methods() -> None:
    counts = {
        f"{name}.{node.name}": sum(
            isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in node.body
        )
        for name, (_, tree) in parse_modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    print(f"most methods of a class: {max(counts.values())}")
    assert {name: count for name, count in counts.items() if count > MAX_METHODS} == {}


def test_functions_are_short() -> None:
    lengths = [
        (node.end_lineno or 0) - node.lineno + 1
        for _, tree in parse_modules().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    print(f"{len(lengths)} functions, median {statistics.median(lengths):g} lines")
    assert statistics.median(lengths) <= MAX_MEDIAN_FUNCTION_LINES


def test_modules_have_no_import_cycles() -> None:
    graph = {
        name: set(find_imports(name, file, tree)) - {name}
        for name, (file, tree) in parse_modules().items()
    }
    for name, needed in graph.items():  # a package is imported before its modules
        needed.difference_update(list_packages_of(name))
    cycle: list[str] = []
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        cycle = exc.args[1]
    print(f"{sum(map(len, graph.values()))} imports between modules")
    assert cycle == []


def list_packages_of(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts))}


def test_apps_have_few_untyped_dicts() -> None:
    """`dict[str, Any]` in apps/, as an annotation or an alias."""
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for name, (file, tree) in parse_modules().items()
        if name.split(".")[0] == "apps"
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and ast.unparse(node) == "dict[str, Any]"
    ]
    print(f"dict[str, Any] in apps/: {len(found)}")
    assert len(found) <= MAX_UNTYPED_IN_APPS, "\n".join(found)
