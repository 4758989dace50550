"""SIGKILL at random times: nothing that was acknowledged is lost, incomplete, or computed twice.

`CHAOS_KILLS` sets the number of kills per target (1 by default), `CHAOS_SEED` their order and
times, and `CHAOS_REPORT` a file that receives the figures as JSON. `make chaos` runs 50.
"""

import json
import random
import signal
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.application import find_free_port, write_deploy_file
from storage import durable
from tests.e2e.conftest import ROOT, Application, start_application
from tests.faults.clients import BASE_MODEL, OTHER_MODEL, Clients
from tests.faults.ledger import MAX_RUNNING, Ledger, Losses, judge, read_losses
from tests.faults.processes import (
    Target,
    find_by_command,
    find_replica,
    kill_tree,
    list_processes,
    send_signal,
)
from tests.faults.settings import NUM_KILLS, REPORT, SEED
from tests.process_tree import read_command
from tests.tiny_model import build_tiny_model
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

TIMEOUT_S = 240.0
WHOLE = "the whole application"
PAGE = "page"
CONSOLIDATION = "consolidation"


def find_consolidating(application: Application) -> list[psutil.Process]:
    """Return the live drivers of runs whose last step is complete, so that they consolidate."""
    found = []
    for driver in DRIVERS.find(application):
        for word in read_command(driver).split():
            metrics = application.storage / "runs" / word / "metrics.jsonl"
            last = durable.read_last_json_line(metrics) if word.startswith("ftjob-") else None
            if last and last["step"] == last["num_steps"]:
                found.append(driver)
                break
    return found


DRIVERS = Target("job driver", find_by_command("apps.fine_tuning.cluster.job_main"))
TARGETS = [
    Target("training worker", find_by_command("RayTrainWorker")),
    Target("train controller", find_by_command("TrainController")),
    DRIVERS,
    Target(CONSOLIDATION, find_consolidating),
    Target("queue", find_replica("FineTuningQueue")),
    Target("API", find_replica("Api")),
    Target("generator", find_replica("Generator")),
    Target(PAGE, find_replica("Ui")),
    Target(WHOLE, list_processes),
]
SERVING = {"queue", "API", "generator", PAGE}


@dataclass
class Row:
    """The results of the kills of one target; recovery times are in seconds."""

    target: str
    num_kills: int = 0
    recovery_s: list[float] = field(default_factory=list)

    def describe(self) -> str:
        """Return the results as a line of a Markdown table."""
        times = self.recovery_s or [0.0]
        return (
            f"| {self.target} | {self.num_kills} | {statistics.median(times):.1f} "
            f"| {max(times):.1f} |"
        )


class Chaos:
    """One application, restarted after it is killed as a whole, and the results of all kills."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = find_free_port()
        self._deploy = write_deploy_file(
            ROOT / "deploy.yaml",
            folder,
            self._port,
            base_models={name: str(folder / name) for name in (BASE_MODEL, OTHER_MODEL)},
            max_concurrent_runs=MAX_RUNNING,
            max_restarts=1000,
        )
        self._killed: set[psutil.Process] = set()  # not PIDs, which may be reused
        self._rng = random.Random(SEED)
        self._pool = ThreadPoolExecutor(2)
        self._recoveries: dict[str, Future[None]] = {}
        self.rows = {target.name: Row(target.name) for target in TARGETS}
        self.application = self._start()

    def _start(self) -> Application:
        return start_application(self._deploy, self._folder, self._port)

    def run(self, clients: Clients) -> None:
        """Kill every target `NUM_KILLS` times in random order; raises an error of a client.

        Serving processes are killed one at a time, each after the previous one has recovered.
        Kills of the page and of training processes do not wait for them.
        """
        order = [target for target in TARGETS for _ in range(NUM_KILLS)]
        self._rng.shuffle(order)
        for target in order:
            if target.name == PAGE:
                self._finish_recoveries({PAGE})
            elif target.name in SERVING:
                self._finish_recoveries(SERVING - {PAGE})
            elif target.name == WHOLE:
                self._finish_recoveries(SERVING)
            self._kill(target)
            clients.check()
        self._finish_recoveries(SERVING)

    def _finish_recoveries(self, names: set[str]) -> None:
        for name in names & self._recoveries.keys():
            self._recoveries.pop(name).result()

    def _kill(self, target: Target) -> None:
        victim: psutil.Process = wait_until(
            lambda: self._choose(target), TIMEOUT_S, f"a live {target.name} is found"
        )
        time.sleep(self._rng.uniform(0.0, 0.7 if target.name == CONSOLIDATION else 3.0))
        started = time.monotonic()
        if target.name == WHOLE:
            kill_tree(psutil.Process(self.application.process.pid))
            self.application.process.wait()
            self.application.client.close()
            self.application = self._start()
            self._note_recovery(target, started)
        elif not send_signal(victim, signal.SIGKILL):
            self._kill(target)  # the process had already ended; kill another one instead
            return
        else:
            self._killed.add(victim)
            if target.name in SERVING:
                recovery = self._pool.submit(self._await_recovery, target, started)
                self._recoveries[target.name] = recovery
        self.rows[target.name].num_kills += 1
        print(f"killed {target.name}", flush=True)

    def _await_recovery(self, target: Target, started: float) -> None:
        wait_until(lambda: self._has_recovered(target), TIMEOUT_S, f"{target.name} has recovered")
        self._note_recovery(target, started)

    def _note_recovery(self, target: Target, started: float) -> None:
        took_s = time.monotonic() - started
        self.rows[target.name].recovery_s.append(took_s)
        print(f"{target.name} recovered after {took_s:.1f} s", flush=True)

    def _choose(self, target: Target) -> psutil.Process | None:
        """Choose one of the live processes of a target that was not killed yet, if there is one."""
        assert self.application.process.poll() is None
        alive = [
            process for process in target.find(self.application) if process not in self._killed
        ]
        return self._rng.choice(alive) if alive else None

    def _has_recovered(self, target: Target) -> bool:
        path = "/ui/" if target.name == PAGE else "/healthz"
        try:
            answer = httpx.get(f"{self.application.url}{path}", timeout=5.0)
        except httpx.HTTPError:
            return False
        return answer.status_code == 200 and self._choose(target) is not None


@pytest.fixture(scope="module")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chaos]:
    folder = tmp_path_factory.mktemp("chaos")
    build_tiny_model(folder / BASE_MODEL)
    build_tiny_model(folder / OTHER_MODEL, seed=1)
    chaos = Chaos(folder)
    yield chaos
    chaos.application.stop()


def train_undisturbed(chaos: Chaos) -> Losses:
    """Train once without kills; every other job must have the losses returned."""
    ledger = Ledger()
    clients = Clients(f"{chaos.application.url}/v1", ledger, seed=SEED, max_jobs=1)

    def has_ended() -> bool:
        clients.check()
        return have_ended(chaos, ledger, 1)

    with clients.work():
        wait_until(has_ended, TIMEOUT_S, "the undisturbed job ends")
    return read_losses(chaos.application.storage, ledger.jobs[0])


def have_ended(chaos: Chaos, ledger: Ledger, num_jobs: int) -> bool:
    accepted = list(ledger.jobs)  # before they are listed: clients add jobs at the same time
    jobs = {job.id: job for job in chaos.application.client.fine_tuning.jobs.list(limit=100)}
    for job_id in accepted:
        assert jobs[job_id].status not in ("failed", "cancelled"), jobs[job_id].error
    return len(accepted) >= num_jobs and all(
        jobs[job_id].status == "succeeded" for job_id in accepted
    )


def test_acknowledged_requests_are_not_lost_torn_or_repeated(chaos: Chaos) -> None:
    expected = train_undisturbed(chaos)
    assert [step for step, _ in expected] == list(range(1, len(expected) + 1))
    ledger = Ledger()
    clients = Clients(f"{chaos.application.url}/v1", ledger, seed=SEED)
    with clients.work():
        chaos.run(clients)
        wait_until(lambda: len(ledger.jobs) > 0, TIMEOUT_S, "a job is accepted")
    wait_until(lambda: have_ended(chaos, ledger, 1), TIMEOUT_S, "all accepted jobs end")
    client = chaos.application.client
    verdict = judge(ledger, client, chaos.application.storage, expected)
    report(chaos, ledger)
    assert verdict.lost == []
    assert verdict.torn == []
    assert verdict.twice == []
    assert verdict.out_of_turn == []
    assert ledger.outcomes["chat ok"] > 0
    assert ledger.outcomes["stream ok"] > 0
    assert ledger.files
    assert ledger.moves
    assert len(ledger.jobs) > MAX_RUNNING, "enough jobs to judge their order"


def report(chaos: Chaos, ledger: Ledger) -> None:
    """Print the figures as a Markdown table, and write them to the file `REPORT` if set."""
    print(f"\nseed {SEED}; {len(ledger.jobs)} jobs, {len(ledger.files)} files acknowledged")
    print("| target | kills | median s | max s |\n|---|---|---|---|")
    for row in chaos.rows.values():
        print(row.describe())
    print("requests:", dict(sorted(ledger.outcomes.items())))
    for error in ledger.errors:
        print("500:", error)
    if REPORT:
        figures = {
            "seed": SEED,
            "jobs": len(ledger.jobs),
            "files": len(ledger.files),
            "alias_moves": len(ledger.moves),
            "requests": dict(sorted(ledger.outcomes.items())),
            "errors": ledger.errors,
            "targets": [asdict(row) for row in chaos.rows.values()],
        }
        Path(REPORT).write_text(json.dumps(figures, indent=2) + "\n")
