"""Does a run that is killed at any time end as if nothing had happened?

    python benchmarks/tools/kills.py --trials 20

Estimators: a fit is interrupted (SIGINT), then fitted again in the same process. Experiments: `qpsbgd run` and all its
processes are killed (SIGKILL), then the same command goes on. Dask: a worker is killed while jobs run. Results must be
those of a run that nobody disturbed, and nothing half-written may be left. Writes benchmarks/results/kills.json.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np

from qpsbgd_files.atomic import without_checksum
from qpsbgd_paper.framework.result_files import environment, write_json
from qpsbgd_paper.framework.runs import run_jobs

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from qpsbgd.cli import main; main()"]
NOT_COMPARED = ("made with", "seconds of training")


def estimators(trials, source):
    """A classifier whose fit is interrupted, and then fitted again."""
    from qpsbgd.sklearn import QPSBGDClassifier

    rows = np.random.default_rng(0).normal(size=(400, 8))
    labels = (rows[:, 0] + rows[:, 1] * rows[:, 2] > 0).astype(int)

    def made():
        return QPSBGDClassifier(16, epochs=15, random_state=0)

    made().fit(rows, labels)  # what is compiled or loaded once
    begin = time.perf_counter()
    expected = made().fit(rows, labels).predict_proba(rows)
    whole = time.perf_counter() - begin
    for _ in range(trials):
        model, after = made(), source.uniform(0.02, 0.98) * whole
        timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
        interrupted = False
        try:
            timer.start()
            model.fit(rows, labels)
            timer.cancel()
            timer.join()
        except KeyboardInterrupt:
            interrupted = True
        yield {"after": round(after, 3), "hit": interrupted, "equal": equal(model.fit(rows, labels), rows, expected)}


def equal(model, rows, expected):
    return bool((model.predict_proba(rows) == expected).all())


def experiments(trials, source):
    """`qpsbgd run` with two processes, killed with all of them, and started again."""
    with tempfile.TemporaryDirectory() as place:
        expected, whole = finished(Path(place) / "whole")
        for trial in range(trials):
            folder, after = Path(place) / str(trial), source.uniform(0.1, 0.98) * whole
            process = subprocess.Popen(arguments(folder), stdout=subprocess.DEVNULL, start_new_session=True)
            try:
                process.wait(after)
                hit = False
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                hit = True
            kept = len(list(folder.glob("runs/*.json")))
            found, _ = finished(folder)
            left = [path.name for path in folder.rglob("*.part")]
            yield {"after": round(after, 2), "hit": hit, "kept": kept, "equal": found == expected and not left}


def arguments(folder):
    return [*COMMAND, "run", "logreg", "--quick", "--seeds", "2", "--workers", "2", "--out", str(folder)]


def finished(folder):
    """What a run found, and how long it took."""
    begin = time.perf_counter()
    subprocess.run(arguments(folder), check=True, stdout=subprocess.DEVNULL)
    content = without_checksum((folder / "logreg.json").read_bytes())
    return {key: value for key, value in content.items() if key not in NOT_COMPARED}, time.perf_counter() - begin


def drawn(*, x):
    """A short job whose result depends on its settings alone."""
    time.sleep(0.1)
    return {"drawn": np.random.default_rng(x).normal(size=50).tolist()}


def dask_workers(trials, source):
    """Jobs on three workers, of which one is killed."""
    import distributed

    from qpsbgd_paper.framework.dask_workers import DaskWorkers

    jobs = [{"x": x} for x in range(12)]
    for _ in range(trials):
        with (
            tempfile.TemporaryDirectory() as place,
            distributed.LocalCluster(
                n_workers=3, threads_per_worker=1, dashboard_address=None, silence_logs=50, host="127.0.0.1"
            ) as cluster,
            DaskWorkers(cluster.scheduler_address) as workers,
        ):
            after, victim = source.uniform(0.0, 0.5), source.choice(list(cluster.workers.values())).pid
            timer = threading.Timer(after, os.kill, (victim, signal.SIGKILL))
            timer.start()
            found = {
                one.settings["x"]: one.result["drawn"]
                for one in run_jobs(drawn, jobs, experiment="toy", folder=Path(place), workers=workers)
            }
            timer.join()
        right = {job["x"]: drawn(**job)["drawn"] for job in jobs}
        yield {"after": round(after, 3), "hit": True, "equal": found == right}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "kills.json")
    options = parser.parse_args()
    found = {"seed": options.seed, "made with": environment()}
    trials = []
    for kind in (estimators, dask_workers, experiments):
        found[kind.__name__] = []
        for trial in kind(options.trials, random.Random(options.seed)):
            found[kind.__name__].append(trial)
            trials.append(trial)
            print(kind.__name__, json.dumps(trial), flush=True)
            write_json(options.out, found)
    print(f"{sum(trial['equal'] for trial in trials)} of {len(trials)} end like an undisturbed run")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
