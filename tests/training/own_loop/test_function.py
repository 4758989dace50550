import sys
from pathlib import Path

import pytest

from training.own_loop.function import LoopError, build_config, call_loop, import_loop
from training.spec import TrainingSpec


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "someones_loop.py").write_text(
        "value = 3\ndef train_func(config):\n    config['seen'] = True\ndef _hidden():\n    ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "someones_loop", raising=False)
    return "someones_loop"


def test_function_is_imported_and_called_with_its_config(module: str) -> None:
    config = {"lr": 1}
    call_loop(import_loop(f"{module}:train_func"), config)
    assert config == {"lr": 1, "seen": True}


def test_function_without_parameters_is_called_without_config() -> None:
    called = []
    call_loop(lambda: called.append(1), {})
    assert called == [1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:f", "'no_such_module' cannot be imported by the workers: No module named"),
        ("someones_loop:train", "has no function 'train': found train_func"),
        ("someones_loop:value", "has no function 'value'"),
    ],
)
def test_unusable_names_are_explained(module: str, name: str, message: str) -> None:
    with pytest.raises(LoopError, match=message):
        import_loop(name)


def test_config_has_settings_of_the_spec() -> None:
    spec = TrainingSpec(
        base_model="m", train_file="f", loop="a:b", epochs=7, loop_config={"batch_size": 2}
    )
    assert build_config(spec) == {
        "base_model": "m",
        "task": "causal_lm",
        "seed": 0,
        "epochs": 7,
        "learning_rate": 1e-4,
        "batch_size": 2,
    }
