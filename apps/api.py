"""The former import path of `apps.deployments`, kept for deploy files of release 0.1."""

import warnings

from apps.deployments import build_app

__all__ = ["build_app"]

warnings.warn(
    "apps.api:build_app has moved; write `import_path: apps.deployments:build_app` in the "
    "deploy file",
    FutureWarning,
    stacklevel=2,
)
