"""How good are the estimators at their defaults? Beside scikit-learn's own networks and linear models.

Scores of 5-fold cross-validation, accuracy or R², on small data that scikit-learn ships or makes, and on Adult (a1a).
The estimators get the data as it is, the others behind a StandardScaler; `MLP` has its defaults but for 500 epochs
instead of 200, which often end before it has converged. The estimators' defaults were chosen on the data sets in
DESIGN alone.

    python benchmarks/training/estimators.py [FILE] [--seeds N]       writes benchmarks/results/estimators.json, or FILE
"""

from qpsbgd_qubo.openmp import wait_passively

wait_passively()  # before torch is loaded

import argparse
import statistics
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
    make_friedman1,
    make_friedman2,
    make_moons,
    make_regression,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from qpsbgd.sklearn import QPSBGDClassifier, QPSBGDRegressor
from qpsbgd_paper.datasets import load_adult
from qpsbgd_paper.framework.result_files import environment, write_json

DESIGN = ("wine", "breast cancer", "blobs on a cube", "Adult (a1a)", "diabetes", "Friedman 1", "plane and noise")
"""Data sets that the defaults were chosen on; the other half was looked at once they were chosen."""


def adult():
    rows = load_adult()
    return rows.train_inputs.numpy(), rows.train_targets.numpy()


def houses(rows=1000):
    """Eight columns of very different scales, and a target with bends and products of them, like house prices."""
    random = np.random.default_rng(0)
    z = random.standard_normal((rows, 8))
    bends = 0.5 * np.sin(2 * z[:, 1]) * z[:, 2] - 0.7 * np.abs(z[:, 3]) + 0.3 * z[:, 4] * z[:, 0]
    near = 0.5 * np.exp(-(z[:, 6] ** 2) - z[:, 7] ** 2)
    scales, middles = [1, 10, 100, 0.01, 1, 1000, 5, 0.5], [3, 20, 500, 1, 0, 35, 4, -120]
    return z * scales + middles, 2 + z[:, 0] + bends + near + 0.2 * random.standard_normal(rows)


CLASSES = {
    "iris": lambda: load_iris(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "breast cancer": lambda: load_breast_cancer(return_X_y=True),
    "digits": lambda: load_digits(return_X_y=True),
    "moons": lambda: make_moons(500, noise=0.25, random_state=0),
    "blobs on a cube": lambda: make_classification(600, 20, n_informative=5, n_classes=3, random_state=0),
    "wrong labels": lambda: make_classification(400, 30, n_informative=4, flip_y=0.2, random_state=1),
    "Adult (a1a)": adult,
}
TARGETS = {
    "diabetes": lambda: load_diabetes(return_X_y=True),
    "Friedman 1": lambda: make_friedman1(600, noise=1.0, random_state=0),
    "Friedman 2": lambda: make_friedman2(600, noise=100.0, random_state=0),
    "houses": houses,
    "plane and noise": lambda: make_regression(200, 15, n_informative=5, noise=50.0, random_state=0),
    "many columns": lambda: make_regression(200, 60, n_informative=10, noise=20.0, random_state=1),
}
MODELS = ("linear", "MLP", "qpsbgd", "qpsbgd spins")


def model(name, *, regression, seed):
    ours, network = (QPSBGDRegressor, MLPRegressor) if regression else (QPSBGDClassifier, MLPClassifier)
    if name == "qpsbgd":
        return ours(random_state=seed)
    if name == "qpsbgd spins":
        return ours(projection="spins", random_state=seed)
    if name == "MLP":
        return make_pipeline(StandardScaler(), network(max_iter=500, random_state=seed))
    return make_pipeline(StandardScaler(), LinearRegression() if regression else LogisticRegression(max_iter=1000))


def folds(X, y, *, regression, seed):
    splitter = (KFold if regression else StratifiedKFold)(5, shuffle=True, random_state=seed)
    return list(splitter.split(X, y))


def measured(make, data, *, regression, seeds):
    """The scores of all folds, and the median seconds of a fit (CPU time)."""
    scores, seconds = [], []
    for seed in range(seeds):
        for train, test in folds(*data, regression=regression, seed=seed):
            estimator = make(seed)
            begun = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                estimator.fit(data[0][train], data[1][train])
            seconds.append(time.process_time() - begun)
            scores.append(float(estimator.score(data[0][test], data[1][test])))
    return {"scores": scores, "seconds": statistics.median(seconds)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).parents[1] / "results" / "estimators.json")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for each in MODELS:
        for name, load in (CLASSES | TARGETS).items():
            data, regression = load(), name in TARGETS

            def make(seed, each=each, regression=regression):
                return model(each, regression=regression, seed=seed)

            found = measured(make, data, regression=regression, seeds=options.seeds)
            shape = {"rows": len(data[0]), "columns": data[0].shape[1], "design": name in DESIGN}
            rows.append({"data": name, "model": each, **shape, **found})
            print(f"{name}: {each} {statistics.mean(found['scores']):.4f}, {found['seconds']:.2f} s", flush=True)
        write_json(options.file, {"made with": environment(), "seeds": options.seeds, "rows": rows})


if __name__ == "__main__":
    main()
