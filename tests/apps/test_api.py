"""The former import paths in deploy files of release 0.1."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("former", "current"),
    [("apps.api", "apps.deployments"), ("apps.vllm", "apps.upstream.vllm_app")],
)
def test_former_import_path_works_with_warning(
    former: str, current: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, former, raising=False)
    expected = rf"^{former}:build_app has moved; write `import_path: {current}:build_app` in"
    with pytest.warns(FutureWarning, match=expected):
        module = importlib.import_module(former)
    assert module.build_app is importlib.import_module(current).build_app
