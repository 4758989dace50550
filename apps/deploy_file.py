"""What commands read of a deploy file without starting the application."""

from pathlib import Path

import yaml

from storage.layout import DEFAULT_ROOT


def find_storage(deploy: Path) -> Path:
    """Return the storage root that a deploy file names, or the default one."""
    try:
        settings = yaml.safe_load(deploy.read_text())
        roots = (one.get("args", {}).get("storage") for one in settings["applications"])
        root = next(filter(None, roots), DEFAULT_ROOT)
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        root = DEFAULT_ROOT
    return Path(root).expanduser()
