"""How good are the estimators at their defaults? Beside scikit-learn's own networks and linear models.

Test scores, accuracy or R², on 30 % of the rows, drawn anew for every seed. The estimators get the data as it is, the
others behind a StandardScaler. `MLP` has 500 epochs instead of 200, which often end before it has converged.

    python benchmarks/estimators.py [FILE]        writes benchmarks/results/estimators.json, or FILE
"""

from qpsbgd.openmp import wait_passively

wait_passively()  # before torch is loaded

import statistics
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine, make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from qpsbgd.sklearn import QPSBGDClassifier, QPSBGDRegressor
from qpsbgd_paper.framework.result_files import environment, write_json

SEEDS = 3


def houses(rows=1000):
    """Eight columns of very different scales, and a target with bends and products of them, like house prices."""
    random = np.random.default_rng(0)
    z = random.standard_normal((rows, 8))
    bends = 0.5 * np.sin(2 * z[:, 1]) * z[:, 2] - 0.7 * np.abs(z[:, 3]) + 0.3 * z[:, 4] * z[:, 0]
    near = 0.5 * np.exp(-(z[:, 6] ** 2) - z[:, 7] ** 2)
    scales, middles = [1, 10, 100, 0.01, 1, 1000, 5, 0.5], [3, 20, 500, 1, 0, 35, 4, -120]
    return z * scales + middles, 2 + z[:, 0] + bends + near + 0.2 * random.standard_normal(rows)


CLASSES = {
    name: load(return_X_y=True)
    for name, load in (
        ("iris", load_iris),
        ("wine", load_wine),
        ("breast cancer", load_breast_cancer),
        ("digits", load_digits),
    )
}
TARGETS = {
    "diabetes": load_diabetes(return_X_y=True),
    "Friedman 1": make_friedman1(1000, noise=1.0, random_state=0),
    "houses (synthetic)": houses(),
}


def models(regression, seed):
    ours, network = (QPSBGDRegressor, MLPRegressor) if regression else (QPSBGDClassifier, MLPClassifier)
    linear = LinearRegression() if regression else LogisticRegression(max_iter=1000)
    return {
        "qpsbgd": ours(random_state=seed),
        "qpsbgd spins": ours(projection="spins", random_state=seed),
        "MLP": make_pipeline(StandardScaler(), network(max_iter=500, random_state=seed)),
        "linear": make_pipeline(StandardScaler(), linear),
    }


def main():
    torch.set_num_threads(1)
    rows = []
    for name, (X, y) in (CLASSES | TARGETS).items():
        regression = name in TARGETS
        scores = {}
        for seed in range(SEEDS):
            parts = train_test_split(X, y, test_size=0.3, random_state=seed, stratify=None if regression else y)
            for model, estimator in models(regression, seed).items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    estimator.fit(parts[0], parts[2])
                scores.setdefault(model, []).append(float(estimator.score(parts[1], parts[3])))
        rows += [{"data": name, "rows": len(X), "model": model, "scores": found} for model, found in scores.items()]
        print(name, {model: round(statistics.mean(found), 4) for model, found in scores.items()}, flush=True)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results" / "estimators.json"
    write_json(target, {"made with": environment(), "seeds": SEEDS, "rows": rows})


if __name__ == "__main__":
    main()
