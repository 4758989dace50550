"""DeepSpeed's shared-memory operation for CPU workers, compiled ahead of the first run.

DeepSpeed compiles the operation when the first CPU worker starts and has no fallback. A process
that is killed while compiling or loading the operation leaves a lock file behind, and later
processes wait for it for ever. So the operation is compiled and loaded here, under an operating
system lock, which the kernel releases when a process dies; a lock file found then is stale.
"""

import argparse
import hashlib
import logging
import os
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from storage.locks import lock_exclusive

logger = logging.getLogger(__name__)

_LOCK_NAME = "tuneserve.lock"
_FOLDER_VARIABLE = "TORCH_EXTENSIONS_DIR"


class CompilerError(RuntimeError):
    """The operation cannot be compiled here."""


def ensure_cpu_op() -> bool:
    """Compile the operation if it is not built yet; returns whether it had to be compiled.

    Raises `CompilerError` if there is no C++ compiler, or if compiling fails.
    """
    builder = _load_builder()
    folder = _find_build_folder(builder.name)
    if _is_built(folder, builder.name):
        return False
    if shutil.which(os.environ.get("CXX", "c++")) is None and shutil.which("g++") is None:
        raise CompilerError(
            "no C++ compiler was found; training on CPUs needs one once: install g++ (on Debian "
            "and Ubuntu: apt-get install g++)"
        )
    with lock_exclusive(folder.parent / _LOCK_NAME):
        if _is_built(folder, builder.name):
            return False
        logger.info("compiling DeepSpeed's shared-memory operation; this happens once")
        _load(builder, folder)
    return True


def load_cpu_op() -> None:
    """Load the operation into this process, where DeepSpeed then finds it.

    DeepSpeed would create a lock file while loading; if a worker were killed during that, its
    replacements would wait for ever. Raises `CompilerError`.
    """
    builder = _load_builder()
    folder = _find_build_folder(builder.name)
    with lock_exclusive(folder.parent / _LOCK_NAME):
        _load(builder, folder)


def _load(builder: Any, folder: Path) -> None:
    """Make DeepSpeed load its operation, compiled if needed; the caller must hold the lock."""
    (folder / "lock").unlink(missing_ok=True)
    try:
        builder.load(verbose=False)
    except (RuntimeError, ImportError, OSError) as exc:
        raise CompilerError(f"DeepSpeed's CPU operation could not be compiled: {exc}") from exc


def main() -> int:
    """Compile the operation from the command line: `python -m training.deepspeed.cpu_op`."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    import torch

    if torch.cuda.is_available():
        return 0  # GPU workers need no operation of this kind
    try:
        ensure_cpu_op()
    except CompilerError as exc:
        print(f"error: {exc}", file=sys.stderr)  # noqa: T201 - a command line
        return 1
    return 0


def prepend_ninja_to_path() -> None:
    """Put this environment's ninja first on PATH, without activating the environment.

    DeepSpeed runs ninja whenever it loads its operation, to check whether it is up to date. A
    version of ninja other than the one that built it treats every file as changed and rebuilds it.
    """
    own = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", "")
    if path.split(os.pathsep)[0] != own:
        os.environ["PATH"] = f"{own}{os.pathsep}{path}"


def set_build_folder() -> None:
    """Give each installation of torch and DeepSpeed a build folder of its own, unless one is set.

    torch's default is one folder per user. The compiler's options contain the paths of an
    installation, so two virtual environments would rebuild each other's operation at every start.
    """
    if os.environ.get(_FOLDER_VARIABLE):
        return
    from torch.utils.cpp_extension import get_default_build_root

    parts = (sys.prefix, sys.version, version("torch"), version("deepspeed"))
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    os.environ[_FOLDER_VARIABLE] = str(Path(get_default_build_root(), f"tuneserve-{digest[:12]}"))


def _load_builder() -> Any:
    os.environ["DS_ACCELERATOR"] = "cpu"
    prepend_ninja_to_path()
    set_build_folder()
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    return ShareMemCommBuilder()


def _find_build_folder(name: str) -> Path:
    from torch.utils.cpp_extension import _get_build_directory

    return Path(_get_build_directory(name, verbose=False))


def _is_built(folder: Path, name: str) -> bool:
    return (folder / f"{name}.so").is_file() and not (folder / "lock").exists()


if __name__ == "__main__":
    sys.exit(main())
