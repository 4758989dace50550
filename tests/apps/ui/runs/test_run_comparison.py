"""Runs compared: figures, curves and the settings that differ."""

from apps.client.resources import Job
from apps.ui.runs.run_comparison import read_comparison, render_differences
from apps.ui.runs.view_request import ViewRequest
from tests.apps.stub_api import StubApi, ask
from tests.apps.stub_runs import make_metrics
from tests.apps.ui.hostile import HOSTILE, assert_escaped


def make_job(name: str, **training: object) -> Job:
    return Job(id=name, status="succeeded", user_provided_suffix=name, training=training)


def test_only_settings_that_differ_are_shown() -> None:
    html = render_differences(
        [
            make_job("a", epochs=3, seed=1, task_settings={"loss": "dpo"}),
            make_job("b", epochs=5, seed=1, task_settings={"loss": "ipo"}),
            make_job("c", epochs=5, seed=1, adapter={"rank": 8}),
        ]
    )
    text = html.replace('<span translate="no">', "").replace("</span>", "")
    assert "<td>3</td><td>5</td><td>5</td>" in text
    assert "<td>dpo</td><td>ipo</td><td>not set</td>" in text
    assert "{&quot;rank&quot;: 8}" in html
    assert "Seed" not in html
    assert "are the same" in render_differences([make_job("a", epochs=3), make_job("b", epochs=3)])


def test_compared_runs_have_figures_and_curves(api: StubApi) -> None:
    api.add_job("ftjob-1", "succeeded", user_provided_suffix="one", finished_at=None)
    api.add_job("ftjob-2", "running", user_provided_suffix="two")
    api.runs.metrics["ftjob-1"] = make_metrics(20)
    asked = ViewRequest(view="compare", compare=("ftjob-1", "ftjob-2"))
    content = ask(api, lambda client: read_comparison(client, asked, (1.0, 9.0)))
    figures = content.parts["compare-figures"]
    assert "<td>20</td><td>–</td>" in figures
    assert f"<td>{make_metrics(20)[-1]['loss']:.4f}</td>" in figures
    curve = content.values["curve/0"]
    assert isinstance(curve, dict)
    assert curve["name"] == "one"
    assert len(curve["columns"]["loss"]) == 20
    assert content.values["interval_s"] == 1


def test_hostile_values_are_escaped() -> None:
    jobs = [make_job(HOSTILE, **{HOSTILE: 1}), make_job("b", **{HOSTILE: HOSTILE})]
    assert_escaped(render_differences(jobs))
