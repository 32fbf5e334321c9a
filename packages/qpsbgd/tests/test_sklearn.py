import importlib
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch
from lazy import Lazy

from qpsbgd.deploy import load_packed, pack
from qpsbgd.nn import BinaryLinear

base, datasets, exceptions = (Lazy(f"sklearn.{name}") for name in ("base", "datasets", "exceptions"))
model_selection, pipeline, preprocessing = (
    Lazy(f"sklearn.{name}") for name in ("model_selection", "pipeline", "preprocessing")
)
estimators, estimator, sparse = Lazy("qpsbgd.sklearn"), Lazy("qpsbgd.sklearn.estimator"), Lazy("scipy.sparse")
SMALL = {"hidden_layers": 16, "epochs": 3, "random_state": 0}
both = pytest.mark.parametrize("case", ["classifier", "regressor"])


@cache
def iris():
    return datasets.load_iris(return_X_y=True)


@cache
def friedman():
    return datasets.make_friedman1(300, 5, noise=0.1, random_state=0)


@pytest.fixture
def kind(case):
    return estimators.QPSBGDClassifier if case == "classifier" else estimators.QPSBGDRegressor


@pytest.fixture
def data(case):
    return iris() if case == "classifier" else friedman()


CHECKS = """
import sys
from sklearn.utils.estimator_checks import check_estimator
import qpsbgd.sklearn

results = check_estimator(getattr(qpsbgd.sklearn, sys.argv[1])(), on_skip=None, on_fail=None)
bad = [(one["check_name"], one["status"], repr(one["exception"])) for one in results if one["status"] != "passed"]
print(len(results), "checks;", bad or "all passed")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["QPSBGDClassifier", "QPSBGDRegressor"])
def test_every_check_of_scikit_learn_passes_at_the_defaults(kind):
    # Without the first a check is skipped; small networks gain nothing from a second thread.
    environment = os.environ | {"SCIPY_ARRAY_API": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHECKS, kind], env=environment, capture_output=True, text=True, timeout=900
    )
    assert "all passed" in done.stdout, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 40


def test_a_classifier_learns_unscaled_data_and_gives_probabilities():
    X, y = iris()
    scales = np.array([1e-6, 1.0, 1e3, 1e6])
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    rows, others, labels, wanted = model_selection.train_test_split(
        X * scales + 5 * scales, names, random_state=0, stratify=names
    )
    model = estimators.QPSBGDClassifier(epochs=30, random_state=0).fit(rows, labels)
    assert model.score(others, wanted) > 0.85
    shares = model.predict_proba(others)
    assert shares.shape == (len(others), 3)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert (model.classes_[shares.argmax(1)] == model.predict(others)).all()


def test_a_regressor_learns_targets_of_any_scale():
    X, y = friedman()
    rows, others, targets, wanted = model_selection.train_test_split(X, 1e5 * y + 1e6, random_state=0)
    model = estimators.QPSBGDRegressor(epochs=20, random_state=0).fit(rows, targets)
    assert model.score(others, wanted) > 0.75
    assert abs(model.predict(others).mean() / wanted.mean() - 1) < 0.1


@both
def test_the_weights_are_binary_and_the_network_makes_the_predictions(kind, data):
    model = kind(**SMALL).fit(*data)
    layers = [module for module in model.network_ if isinstance(module, BinaryLinear)]
    assert [layer.out_features for layer in layers] == [16, 3 if kind is estimators.QPSBGDClassifier else 1]
    assert not any(isinstance(module, torch.nn.Linear) for module in model.network_)
    with torch.no_grad():
        outputs = model.network_.eval()(torch.tensor(data[0])).numpy()
    predicted = model.classes_[outputs.argmax(1)] if kind is estimators.QPSBGDClassifier else outputs[:, 0]
    np.testing.assert_array_equal(predicted, model.predict(data[0]))


@both
def test_the_same_seed_gives_the_same_and_the_generators_outside_stay_as_they_are(kind, data):
    X, y = data
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, second = (kind(**SMALL).fit(X, y).predict(X) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002
    other = kind(**SMALL | {"random_state": 1}).fit(X, y)
    weights = [model.network_[1].weight.detach() for model in (kind(**SMALL).fit(X, y), other)]
    assert not torch.equal(*weights)


@both
def test_copies_through_pickle_predict_the_same_and_go_on_learning_the_same(kind, data):
    X, y = data
    model = kind(**SMALL).fit(X, y).partial_fit(X, y)
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict(X), model.predict(X))
    np.testing.assert_array_equal(copied.partial_fit(X, y).predict(X), model.partial_fit(X, y).predict(X))
    assert not hasattr(base.clone(model), "network_")


@pytest.mark.slow
def test_a_grid_is_searched_in_a_pipeline_by_two_processes():
    grid = {"qpsbgdclassifier__hidden_layers": [(16,), (16, 16)], "qpsbgdclassifier__projection": ["ridge", "spins"]}
    search = model_selection.GridSearchCV(
        pipeline.make_pipeline(preprocessing.MinMaxScaler(), estimators.QPSBGDClassifier(epochs=8, random_state=0)),
        grid,
        n_jobs=2,
        cv=2,
    )
    search.fit(*iris())
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.score(*iris()) > 0.5


@pytest.mark.parametrize("options", [{"projection": "spins", "solver": "annealing"}])
def test_the_spins_of_any_solver_train_it(options):
    model = estimators.QPSBGDClassifier(**SMALL | {"epochs": 20}, **options).fit(*iris())
    assert model.score(*iris()) > 0.6


@both
def test_early_stopping_keeps_the_best_epoch(kind, data):
    model = kind(hidden_layers=16, epochs=60, early_stopping=True, n_iter_no_change=3, random_state=0).fit(*data)
    scores = model.validation_scores_
    assert len(scores) == model.n_iter_ == len(model.loss_curve_)
    assert model.n_iter_ == 60 or (model.n_iter_ < 60 and max(scores[-3:]) <= max(scores[:-3]))
    samples = estimator.WeightedRows.of(*data, None)
    split = {"stratify": samples.values} if kind is estimators.QPSBGDClassifier else {}
    _, held = model_selection.train_test_split(
        np.arange(len(samples)), test_size=0.1, random_state=np.random.RandomState(0), **split
    )
    assert model.score(samples.rows[held], samples.values[held]) == pytest.approx(max(scores))


@both
def test_partial_fits_learn_from_parts(kind, data):
    X, y = data
    model = kind(hidden_layers=32, random_state=0)
    order = np.random.default_rng(0).permutation(len(X))
    more = {"classes": [0, 1, 2]} if kind is estimators.QPSBGDClassifier else {}
    for _ in range(15):
        for part in np.array_split(order, 3):
            model.partial_fit(X[part], y[part], **more)
            more = {}
    assert model.n_iter_ == len(model.loss_curve_) == 45
    assert model.score(X, y) > (0.85 if kind is estimators.QPSBGDClassifier else 0.6)
    np.testing.assert_allclose(model.network_[0].running_mean, X.mean(0))


@pytest.mark.parametrize(("rows", "dropout"), [(10, 0.3), (200, 0.04)])
def test_dropout_falls_with_the_rows_per_column(rows, dropout):
    random = np.random.default_rng(0)
    model = estimators.QPSBGDRegressor(hidden_layers=4, epochs=1).fit(random.random((rows, 2)), random.random(rows))
    assert [module.p for module in model.network_ if isinstance(module, torch.nn.Dropout)] == [pytest.approx(dropout)]


def test_a_single_class_and_two_rows_are_enough():
    X = np.array([[0.0, 1.0], [2.0, 1.0]])
    model = estimators.QPSBGDClassifier(**SMALL).fit(X, ["only", "only"])
    assert model.predict(X).tolist() == ["only", "only"]
    assert np.isfinite(estimators.QPSBGDRegressor(**SMALL).fit(X, [3.0, 3.0]).predict(X)).all()
    with pytest.raises(ValueError, match="1 sample"):
        estimators.QPSBGDClassifier(**SMALL).fit(X[:1], [0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_layers": (0,)}, "hidden_layers must be positive integers"),
        ({"hidden_layers": "128"}, "hidden_layers must be positive integers"),
        ({"epochs": 0}, "epochs must be None or an integer of at least 1, got 0"),
        ({"batch_size": 1}, "batch_size must be an integer of at least 2"),
        ({"validation_fraction": 1.5}, "validation_fraction must be a positive finite number below 1"),
        ({"projection": "both"}, 'projection must be one of "ridge"'),
        ({"solver": "exact"}, "the ridge has no solver"),
        ({"projection": "spins", "solver": "exacct"}, "unknown solver 'exacct'"),
        ({"early_stopping": True, "validation_fraction": 0.99}, "least populated|train_size"),
    ],
)
def test_invalid_options_are_told_at_fit(options, message):
    with pytest.raises(ValueError, match=message):
        estimators.QPSBGDClassifier(**options).fit(*iris())


def test_classes_of_partial_fits_must_be_known_and_stay():
    X, y = iris()
    model = estimators.QPSBGDClassifier(**SMALL)
    with pytest.raises(ValueError, match="first call of partial_fit needs classes"):
        model.partial_fit(X, y)
    with pytest.raises(ValueError, match=r"not in classes: \[2\]"):
        model.partial_fit(X, y, classes=[0, 1])
    with pytest.raises(exceptions.NotFittedError):
        model.predict(X)
    model.partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="classes must stay the same"):
        model.partial_fit(X, y, classes=[0, 1, 2, 3])


@both
def test_sparse_rows_give_the_same_network_as_dense_ones(kind, data):
    X = np.where(data[0] > np.median(data[0]), data[0], 0.0)
    dense = kind(**SMALL).fit(X, data[1]).partial_fit(X, data[1])
    for form in (sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix):
        model = kind(**SMALL).fit(form(X), data[1]).partial_fit(form(X), data[1])
        np.testing.assert_allclose(model.predict(form(X[:20])), dense.predict(X[:20]), rtol=1e-6)
        np.testing.assert_allclose(model.predict(X[:20]), dense.predict(X[:20]), rtol=1e-6)


@both
def test_a_weight_of_two_is_the_same_as_two_rows_in_any_order(kind, data):
    X, y = data
    repeats = np.random.default_rng(0).integers(0, 4, len(X))
    repeated = kind(**SMALL).fit(X.repeat(repeats, 0), y.repeat(repeats))
    order = np.random.default_rng(1).permutation(len(X))
    weighted = kind(**SMALL).fit(X[order], y[order], sample_weight=repeats[order])
    np.testing.assert_array_equal(weighted.predict(X), repeated.predict(X))
    assert not np.array_equal(kind(**SMALL).fit(X, y).predict(X), weighted.predict(X))


def test_weights_that_are_not_whole_count_in_the_loss():
    X = np.random.default_rng(0).normal(size=(300, 3))
    y, upper = np.where(np.arange(300) < 150, 1.0, -1.0), np.arange(300) < 150
    heavy, light = (
        estimators.QPSBGDRegressor(**SMALL).fit(X, y, np.where(upper, w, 0.1)).predict(X).mean() for w in (0.9, 0.1)
    )
    assert heavy > 0.5 > abs(light) + 0.3
    with pytest.raises(ValueError, match="must not be negative, nor all zero"):
        estimators.QPSBGDRegressor(**SMALL).fit(X, y, np.linspace(-1, 1, 300))


def test_weights_of_classes_move_the_border():
    X, y = np.random.default_rng(0).normal(size=(400, 3)), np.arange(400) % 4 == 0
    plain, balanced, dear = (
        estimators.QPSBGDClassifier(**SMALL, class_weight=each).fit(X, y).predict(X).mean()
        for each in (None, "balanced", {True: 50.0, False: 0.5})
    )
    assert plain < 0.1 < 0.3 < balanced < 0.7 < dear
    with pytest.raises(ValueError, match="needs all rows at once"):
        estimators.QPSBGDClassifier(class_weight="balanced").partial_fit(X, y, classes=[False, True])


def test_without_scikit_learn_the_line_to_install_is_told(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("sklearn", "qpsbgd.sklearn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)  # importing it fails
    with pytest.raises(ImportError, match=r'pip install "qpsbgd\[sklearn\]"'):
        importlib.import_module("qpsbgd.sklearn")


@both
def test_a_packed_network_predicts_the_same(kind, data, tmp_path):
    X, y = data
    model = kind(**SMALL).fit(X, y)
    pack(model.network_, tmp_path / "model.qpsbgd")
    outputs = np.asarray(load_packed(tmp_path / "model.qpsbgd")(X.astype(np.float32)))
    if kind is estimators.QPSBGDClassifier:
        assert (model.classes_[outputs.argmax(1)] == model.predict(X)).mean() > 0.99
    else:
        np.testing.assert_allclose(outputs.ravel(), model.predict(X), rtol=1e-4)


def test_fits_in_threads_are_those_of_their_seeds_and_leave_torchs_random_numbers_alone():
    rows, labels = np.random.default_rng(0).standard_normal((60, 4)), np.arange(60) % 2

    def fitted(seed):
        return (
            estimators.QPSBGDClassifier(hidden_layers=16, epochs=4, random_state=seed)
            .fit(rows, labels)
            .predict_proba(rows)
        )

    alone, state = [fitted(seed) for seed in (0, 1, 0, 1)], torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(fitted, (0, 1, 0, 1)))
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("value", [0.0, 1e6])
def test_a_constant_target_is_predicted_exactly(value):
    rows = np.random.default_rng(0).standard_normal((30, 3))
    targets = np.stack([np.full(30, value), rows[:, 0]], 1)
    predicted = estimators.QPSBGDRegressor(hidden_layers=8, epochs=2, random_state=0).fit(rows, targets).predict(rows)
    np.testing.assert_allclose(predicted[:, 0], value, rtol=1e-12)
    assert predicted[:, 1].std() > 0


@pytest.mark.parametrize("factor", [1e-23, 1e20])
def test_spreads_whose_squares_single_precision_cannot_hold_raise_and_double_precision_takes_them(factor):
    rows = np.random.default_rng(0).standard_normal((60, 3)) * np.array([1.0, factor, 1.0])
    labels = (rows[:, 1] > 0).astype(int)
    model = estimators.QPSBGDClassifier(hidden_layers=16, epochs=20, random_state=0)
    with pytest.raises(ValueError, match=r"the spread of column 1 of X is .*, whose square is beyond float32"):
        model.fit(rows.astype(np.float32), labels)
    assert model.fit(rows, labels).score(rows, labels) > 0.8  # or the column was ignored


@pytest.mark.parametrize("is_sparse", [False, True])
def test_spreads_whose_squares_vanish_raise(is_sparse):
    rows = np.random.default_rng(0).standard_normal((60, 3)) * np.array([1.0, 1e-300, 1.0])
    model = estimators.QPSBGDClassifier(hidden_layers=4, epochs=1, random_state=0)
    with pytest.raises(ValueError, match=r"the spread of column 1 of X is .*e-300, whose square is beyond float64"):
        model.fit(sparse.csr_matrix(rows) if is_sparse else rows, rows[:, 0] > 0)


@pytest.mark.parametrize(("value", "dtype"), [(1e9, np.float32), (1.7e18, np.float64)])
def test_a_large_constant_column_changes_nothing(value, dtype):
    rows = np.random.default_rng(0).standard_normal((200, 3))
    labels = (rows[:, 0] > 0).astype(int)
    rows = np.c_[rows, np.full(200, value)].astype(dtype)
    model = estimators.QPSBGDClassifier(hidden_layers=16, epochs=20, random_state=0).fit(rows, labels)
    assert model.score(rows, labels) > 0.9
