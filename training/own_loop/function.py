"""The training function that a spec names: importing it in a worker, and what it receives."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from training.settings.loop_settings import PASSED_SETTINGS
from training.spec import TrainingSpec


class LoopError(RuntimeError):
    """A loop cannot be used, or called a function as it may not; all workers raise it together."""


def import_loop(name: str) -> Callable[..., Any]:
    """Import the function that `loop` names; raises `LoopError`.

    Only workers may call this: importing a module runs its code.
    """
    module_name, _, function_name = name.partition(":")
    try:
        module = import_module(module_name)
    except ImportError as exc:
        raise LoopError(
            f"loop is {name!r}, and {module_name!r} cannot be imported by the workers: {exc}. "
            "Install its package in the environment of Tuneserve, or start the command in its "
            "folder"
        ) from exc
    function = getattr(module, function_name, None)
    if not callable(function):
        raise LoopError(
            f"loop is {name!r}, and {module_name!r} has no function {function_name!r}: found "
            f"{', '.join(_list_functions(module)) or 'no function'}"
        )
    return function  # type: ignore[no-any-return]


def build_config(spec: TrainingSpec) -> dict[str, Any]:
    """Return what a loop receives: its `loop_config`, and some settings of the spec."""
    passed = spec.model_dump(mode="json", include=set(PASSED_SETTINGS))
    return {**passed, **spec.loop_config}


def call_loop(function: Callable[..., Any], config: dict[str, Any]) -> None:
    """Call a loop with its config, or without if it has no parameter, as Ray Train does."""
    if inspect.signature(function).parameters:
        function(config)
    else:
        function()


def _list_functions(module: Any) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]
