"""The former import path of `apps.upstream.vllm_app`, kept for deploy files of release 0.1."""

import warnings

from apps.upstream.vllm_app import build_app

__all__ = ["build_app"]

warnings.warn(
    "apps.vllm:build_app has moved; write `import_path: apps.upstream.vllm_app:build_app` in the "
    "deploy file",
    FutureWarning,
    stacklevel=2,
)
