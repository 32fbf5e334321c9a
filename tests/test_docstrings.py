"""Every public name that others rely on has an example in its docstring that runs."""

import doctest

import pytest

import qpsbgd
import qpsbgd_qubo
from qpsbgd import deploy, nn, qubo, solvers

EXAMPLES = {
    nn: ("BinaryLinear", "BinaryConv1d", "BinaryConv2d", "BinaryGCNConv", "SignActivation", "convert"),
    qubo: ("QuboFamily", "Solution", "binary_map"),
    solvers: ("make_solver",),
    qpsbgd_qubo: ("FamilySampler", "solve"),
    deploy: ("pack", "load_packed", "to_c", "to_onnx"),
    qpsbgd: ("summary", "binarize"),
    "qpsbgd.sklearn": ("QPSBGDClassifier", "QPSBGDRegressor"),
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in EXAMPLES.items() for name in names])
def test_the_example_of_a_public_name_runs(module, name):
    module = pytest.importorskip(module) if isinstance(module, str) else module
    (test,) = doctest.DocTestFinder(recurse=False).find(getattr(module, name), name, globs={})
    assert test.examples, f"{name} has no example"
    said = []
    doctest.DocTestRunner().run(test, out=said.append)
    assert not said, "".join(said)
