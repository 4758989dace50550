from pathlib import Path

import pytest

from training.preflight.resources import ResourceError, check_resources, resolve_precision
from training.spec import TrainingSpec


def make_spec(base_model: str, train_file: Path, **settings: object) -> TrainingSpec:
    return TrainingSpec.model_validate(
        {"base_model": base_model, "train_file": str(train_file), **settings}
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_workers": 8, "cpus_per_worker": 1}, "8 workers × 1 CPUs = 8 CPUs.*cluster has 2"),
        (
            {"num_workers": 1, "cpus_per_worker": 3},
            "1 workers × 3 CPUs = 3 CPUs.*at most 2 on one node",
        ),
        (
            {"num_workers": 2, "cpus_per_worker": 1, "data_engine": "ray"},
            r"2 workers × 1 CPUs \+ 0.5 to prepare rows = 2.5 CPUs",
        ),
        (
            {"num_workers": 2, "cpus_per_worker": 1, "loop": "a:b"},
            r"2 workers × 1 CPUs \+ 0.1 to read rows = 2.1 CPUs",
        ),
        ({"num_workers": 3, "cpus_per_worker": 0.7}, "3 workers × 0.7 CPUs"),
        ({"accelerator": "gpu"}, "2 workers with one GPU each were asked for, .* has 0 GPUs"),
    ],
)
def test_unavailable_resources_are_rejected(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ResourceError, match=f"^{message}"):
        check_resources(make_spec("m", Path("f"), **settings), [{"CPU": 2.0}])


def test_loop_without_rows_may_take_all_cpus() -> None:
    spec = TrainingSpec(base_model="m", loop="a:b", num_workers=2, cpus_per_worker=1)
    check_resources(spec, [{"CPU": 2.0}])


def test_each_worker_must_fit_on_one_node() -> None:
    spec = make_spec("m", Path("f"), num_workers=4, cpus_per_worker=0.75)
    with pytest.raises(
        ResourceError, match="^4 workers × 0.75 CPUs = .*, the cluster has 3, at most 1 on one node"
    ):
        check_resources(spec, [{"CPU": 1.0}] * 3)
    check_resources(spec, [{"CPU": 1.0}] * 4)


def test_worker_needs_gpu_and_cpus_on_one_node() -> None:
    spec = make_spec("m", Path("f"), num_workers=4, cpus_per_worker=4)
    nodes = [{"CPU": 4.0, "GPU": 4.0}, {"CPU": 32.0}]
    with pytest.raises(
        ResourceError, match="^4 workers with one GPU and 4 CPUs each .* have room for 1"
    ):
        check_resources(spec, nodes)
    check_resources(spec, [{"CPU": 16.0, "GPU": 4.0}])


def test_cpus_reserved_for_serving_are_unavailable() -> None:
    spec = make_spec("m", Path("f"), num_workers=2, cpus_per_worker=0.8)
    check_resources(spec, [{"CPU": 2.0}])
    with pytest.raises(
        ResourceError,
        match="^2 workers × 0.8 CPUs = .* has 1.3 besides the 0.7 reserved for serving",
    ):
        check_resources(spec, [{"CPU": 2.0}], reserved_cpus=0.7)


def test_elastic_run_needs_min_workers() -> None:
    spec = make_spec(
        "m", Path("f"), num_workers=8, min_workers=2, save_every_steps=9, cpus_per_worker=1
    )
    check_resources(spec, [{"CPU": 2.0}])
    with pytest.raises(ResourceError, match="^2 workers × 1 CPUs = 2 CPUs"):
        check_resources(spec, [{"CPU": 1.0}])


def test_fp16_needs_gpus() -> None:
    spec = make_spec("m", Path("f"), precision="fp16", num_workers=1)
    with pytest.raises(ResourceError, match="^precision is 'fp16', which needs GPUs"):
        check_resources(spec, [{"CPU": 2.0}])
    check_resources(spec, [{"CPU": 2.0, "GPU": 1.0}])


@pytest.mark.parametrize(
    ("flags", "on_gpu", "expected"),
    [
        ("fpu avx2 avx512f", False, "fp32"),
        ("fpu avx2 avx512_bf16", False, "bf16"),
        ("fpu amx_bf16 amx_tile", False, "bf16"),
        ("fpu avx2", True, "bf16"),
    ],
)
def test_auto_precision_depends_on_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, on_gpu: bool, expected: str
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: bf16\n")
    monkeypatch.setattr("training.preflight.resources._CPU_INFO", tmp_path / "cpuinfo")
    resolved = resolve_precision(make_spec("m", Path("f")), on_gpu=on_gpu)
    assert resolved.precision == expected
    chosen = make_spec("m", Path("f"), precision="bf16")
    assert resolve_precision(chosen, on_gpu=False) is chosen
