"""The environment of a Python process that a process of ours starts."""

import os
import sys
from collections.abc import Mapping


def build_child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of this process, its import path, and `variables`.

    The import path is that of this process, which may differ from that of a new interpreter.
    """
    path = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "PYTHONPATH": path, **variables}
