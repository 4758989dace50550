"""Reading of deploy files by commands, without starting the application."""

from pathlib import Path
from typing import Any

import yaml

from storage.layout import DEFAULT_ROOT
from storage.local_paths import check_local_path


class DeployFileError(ValueError):
    """A deploy file cannot be read; the message names the file and the reason."""


def find_storage(deploy: Path) -> Path:
    """Return the storage root in a deploy file.

    Returns the default one if the file does not exist or names none. Raises `DeployFileError` for a
    file that cannot be read or is not a deploy file.
    """
    try:
        settings = yaml.safe_load(deploy.read_text())
    except FileNotFoundError:
        return Path(DEFAULT_ROOT).expanduser()
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise _describe(deploy, str(exc)) from exc
    applications = settings.get("applications") if isinstance(settings, dict) else None
    if not isinstance(applications, list):
        raise _describe(deploy, "it has no list 'applications'")
    roots = (_find_root(deploy, application) for application in applications)
    return Path(next(filter(None, roots), DEFAULT_ROOT)).expanduser()


def _find_root(deploy: Path, application: Any) -> str | None:
    """Return the storage root in the arguments of one application, if there is one."""
    arguments = application.get("args") if isinstance(application, dict) else None
    root = arguments.get("storage") if isinstance(arguments, dict) else None
    if root is not None and not isinstance(root, str):
        raise _describe(deploy, f"'storage' is {root!r}, expected the path of a folder")
    try:
        check_local_path("storage", root or "")
    except ValueError as exc:
        raise _describe(deploy, str(exc)) from None
    return root


def _describe(deploy: Path, fault: str) -> DeployFileError:
    return DeployFileError(
        f"the deploy file {str(deploy)!r} cannot be read: {fault}; correct it, or name another one"
    )
