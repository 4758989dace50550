"""The configuration that Ray's LLM support receives; running it requires vLLM and a GPU."""

import importlib.util
import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.llm._internal.serve.core.configs.llm_config import LLMConfig
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary
from ray.serve.schema import ServeDeploySchema
from typer.testing import CliRunner

from apps.cli.main import cli
from apps.cli.preflight import read_port
from apps.settings import ApplicationSettings
from apps.ui.settings import UiSettings
from apps.upstream import vllm_app
from apps.upstream.vllm_app import VllmSettings, build_app, describe_models, list_adapter_ids
from serving.errors import ModelNotFoundError
from serving.store.model_store import ModelStore
from storage import durable
from storage.layout import StorageLayout
from tests.peft_adapters import write_adapter
from tests.tiny_model import build_tiny_model

DEPLOY = Path(__file__).parents[3] / "deploy.vllm.yaml"


def make_settings(layout: StorageLayout, **settings: Any) -> VllmSettings:
    return VllmSettings.model_validate(
        {"storage": str(layout.root), "models": ["tiny"], **settings}
    )


def describe(layout: StorageLayout, **settings: Any) -> LLMConfig:
    """Return Ray's configuration of the only model; Ray itself rejects an invalid description."""
    (described,) = describe_models(ModelStore(layout), make_settings(layout, **settings))
    return LLMConfig.model_validate(described)


def test_model_is_served_from_store_under_its_id(layout: StorageLayout) -> None:
    config = describe(layout, engine={"gpu_memory_utilization": 0.5}, accelerator_type="L4")
    loading: Any = config.model_loading_config
    assert (loading.model_id, loading.model_source) == ("tiny", str(layout.model("tiny")))
    assert config.engine_kwargs == {"gpu_memory_utilization": 0.5}
    assert config.accelerator_type == "L4"
    assert config.deployment_config["num_replicas"] == 1


def test_model_whose_tokenizer_settings_name_file_is_refused(layout: StorageLayout) -> None:
    """vLLM passes the directory to transformers, which opens the `vocab` of some classes."""
    source = layout.root / "source"
    shutil.copytree(layout.model("tiny"), source)
    settings = json.loads((source / "tokenizer_config.json").read_text())
    old = layout.model("old")
    (source / "tokenizer_config.json").write_text(json.dumps({**settings, "vocab": "/etc/passwd"}))
    (source / "manifest.json").unlink()
    durable.publish_directory(source, old)  # as an earlier release imported it
    with pytest.raises(ValueError, match=r"^model 'old' is not given to vLLM: .* 'vocab' is '/etc"):
        describe(layout, models=["old"])


@pytest.fixture
def adapters(layout: StorageLayout, tmp_path: Path) -> tuple[str, ...]:
    """Ids of two adapters of `tiny`, of the ranks 4 and 9."""
    for adapter_id, rank in (("a", 4), ("b", 9)):
        adapter = write_adapter(layout.model("tiny"), tmp_path / adapter_id, r=rank)
        ModelStore(layout).add(adapter, adapter_id, base_id="tiny")
    return "a", "b"


@pytest.mark.parametrize("models", [("a", "b"), ("a", "tiny", "b"), ("tiny", "a", "b", "a")])
def test_adapters_are_loaded_beside_their_base(
    layout: StorageLayout, adapters: tuple[str, ...], models: tuple[str, ...]
) -> None:
    config = describe(layout, models=models, engine={"max_loras": 1})
    loading: Any = config.model_loading_config
    assert (loading.model_id, loading.model_source) == ("tiny", str(layout.model("tiny")))
    assert config.engine_kwargs == {
        "enable_lora": True,
        "max_loras": 1,  # as the deploy file sets it
        "max_cpu_loras": 2,
        "max_lora_rank": 16,
        "lora_modules": [
            {"name": name, "path": str(layout.model(name)), "base_model_name": "tiny"}
            for name in adapters
        ],
    }


def test_ids_of_adapters_are_listed(layout: StorageLayout, adapters: tuple[str, ...]) -> None:
    settings = make_settings(layout, models=adapters)
    (described,) = describe_models(ModelStore(layout), settings)
    assert list_adapter_ids(described) == list(adapters)
    (described,) = describe_models(ModelStore(layout), make_settings(layout))
    assert list_adapter_ids(described) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"use_dora": True}, "it was trained by DoRA, expected LoRA or rsLoRA"),
        ({"rank_pattern": {"q_proj": 2}}, "its 'rank_pattern' is {'q_proj': 2}, expected one "),
        ({"alpha_pattern": {"q_proj": 2}}, "its 'alpha_pattern' is {'q_proj': 2}, expected one "),
    ],
)
def test_adapter_that_vllm_would_compute_differently_is_refused(
    layout: StorageLayout, tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    adapter = write_adapter(layout.model("tiny"), tmp_path / "adapter", **changes)
    ModelStore(layout).add(adapter, "a", base_id="tiny")
    expected = re.escape(f"adapter 'a' is not given to vLLM: {fault}")
    with pytest.raises(ValueError, match=rf"^{expected}.*tuneserve models merge a NEW-ID"):
        describe(layout, models=["a"])


@pytest.mark.parametrize("part", ["tokenizer", "chat template"])
def test_adapter_with_another_encoding_is_refused(
    layout: StorageLayout, tmp_path: Path, part: str
) -> None:
    base = layout.model("tiny")
    adapter = write_adapter(base, tmp_path / "adapter")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (base / name).is_file():
            shutil.copy(base / name, adapter)
    tokenizer = json.loads((adapter / "tokenizer.json").read_text())
    (adapter / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1))
    ModelStore(layout).add(adapter, "same", base_id="tiny")
    assert describe(layout, models=["same"]).engine_kwargs["enable_lora"]
    if part == "tokenizer":
        tokenizer["normalizer"] = {"type": "Lowercase"}
        (adapter / "tokenizer.json").write_text(json.dumps(tokenizer))
    else:
        (adapter / "chat_template.jinja").write_text("{{ messages[0].content }}")
    ModelStore(layout).add(adapter, "other", base_id="tiny")
    with pytest.raises(ValueError, match=f"^adapter 'other' is not given to vLLM: its {part} "):
        describe(layout, models=["other"])


def test_replica_settings_are_passed_to_serve(layout: StorageLayout) -> None:
    replica_settings = {"num_replicas": 2, "max_surge_percent": 100}
    config = describe(layout, deployment=replica_settings).deployment_config
    assert replica_settings.items() <= config.items()
    scaling = {"autoscaling_config": {"min_replicas": 1, "max_replicas": 4}}
    config = describe(layout, deployment=scaling).deployment_config
    assert "num_replicas" not in config, "Serve accepts either num_replicas or autoscaling_config"
    with pytest.raises(
        ValueError,
        match=r"^1 validation error for LLMConfig\ndeployment_config\n.*Invalid deployment",
    ):
        describe(layout, deployment={"max_surge_percent": 101})


def test_alias_and_unknown_model_are_refused(
    layout: StorageLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_app, "BASE_MODEL_TIMEOUT_S", 0.0)
    with pytest.raises(ValueError, match=r"^'latest' is an alias"):
        describe(layout, models=["latest"])
    with pytest.raises(ModelNotFoundError, match=r"^no model has the id 'nobody'"):
        describe(layout, models=["nobody"])


def test_model_being_added_is_waited_for(layout: StorageLayout, tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "late", seed=1)
    adding = threading.Timer(0.3, ModelStore(layout).add, (folder, "late"))
    adding.start()
    loading: Any = describe(layout, models=["late"]).model_loading_config
    adding.join()
    assert loading.model_id == "late"


def test_model_with_changed_files_is_refused(layout: StorageLayout) -> None:
    (layout.model("tiny") / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"^tiny: 'config\.json' differs"):
        describe(layout)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_missing_vllm_error_names_install_command(layout: StorageLayout) -> None:
    with pytest.raises(
        ValueError, match=r"^vLLM cannot be used here .* pip install 'tuneserve\[vllm\]'$"
    ):
        build_app(make_settings(layout))


def read_deploy(text: str) -> dict[str, Any]:
    deploy: dict[str, Any] = yaml.safe_load(text)
    ServeDeploySchema.model_validate(deploy)
    return {application["name"]: application for application in deploy["applications"]}


@pytest.mark.parametrize("is_uncommented", [False, True])
def test_deploy_file_matches_schemas_of_serve_and_applications(is_uncommented: bool) -> None:
    text = DEPLOY.read_text()
    if is_uncommented:  # also the part that is commented out
        text = re.sub(r"^  # (?=  |- )", "  ", text, flags=re.MULTILINE)
    applications = read_deploy(text)
    vllm_names = [name for name in applications if name.startswith("vllm")]
    assert vllm_names == (["vllm-a", "vllm-b"] if is_uncommented else ["vllm-a"])
    api = ApplicationSettings.model_validate(applications["tuneserve"]["args"])
    UiSettings.model_validate(applications["page"]["args"])
    for name in vllm_names:
        vllm_application = applications[name]
        settings = VllmSettings.model_validate(vllm_application["args"])
        assert settings.storage == api.storage
        url = f"http://127.0.0.1:{read_port(DEPLOY)}{vllm_application['route_prefix']}"
        assert url in {upstream.url for upstream in api.upstreams}
    assert set(VllmSettings.model_validate(applications["vllm-a"]["args"]).models) <= set(
        api.base_models
    ), "a model that vLLM serves is not installed at the first start"


def test_each_application_can_be_imported_and_validates_its_args() -> None:
    """Serve's validation before a builder runs names a wrong key in `args`."""
    for application in read_deploy(DEPLOY.read_text()).values():
        module, _, name = application["import_path"].partition(":")
        builder = getattr(importlib.import_module(module), name)
        with pytest.raises(ValueError, match=r"^1 validation error for \w+\nmisspelt\n"):
            call_user_app_builder_with_args_if_necessary(
                builder, {**application["args"], "misspelt": 1}
            )


def test_init_writes_vllm_deploy_file(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["init", "--vllm", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "deploy.vllm.yaml").read_text() == DEPLOY.read_text()
    assert not (tmp_path / "deploy.yaml").exists()
    assert "deploy.vllm.yaml" in done.output.replace("\n", "")
