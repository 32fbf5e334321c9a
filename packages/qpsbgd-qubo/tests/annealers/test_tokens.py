# ruff: noqa: E402
"""Tokens that cannot be sent, and endpoints that are none: refused in words, and the token is never shown."""

from lazy import skip_without

skip_without("qpsbgd", "dwave.system")

import traceback
from importlib import import_module

import pytest

from qpsbgd.solvers import make_solver
from qpsbgd.testing import random_family

SECRET = "DEV-0123456789abcdef"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    (tmp_path / "dwave.conf").write_text("[defaults]\n")
    monkeypatch.setenv("DWAVE_CONFIG_FILE", str(tmp_path / "dwave.conf"))
    monkeypatch.setenv("DWAVE_API_ENDPOINT", "http://127.0.0.1:9/sapi/v2/")


@pytest.mark.parametrize("solver", ["dwave", "leap-hybrid"])
@pytest.mark.parametrize(
    "token", ["{}\n", " {}", "{}\r", "{}\nX-Header: 1", "{}\u2603", "{} ", "\u00a0{}", "{}\x00\x1b[0m"]
)
def test_a_token_that_no_request_can_carry_is_refused_and_not_shown(monkeypatch, solver, token):
    import dwave.cloud.config

    config = {"token": token.format(SECRET)}  # an environment variable cannot hold every character
    module = import_module("qpsbgd_qubo.annealers.dwave")  # by name, monkeypatch may find one that a test has replaced
    monkeypatch.setattr(module, "load_config", lambda: dwave.cloud.config.load_config() | config)
    with pytest.raises(RuntimeError, match=r"must be printable ASCII without spaces or line ends.*copy it") as raised:
        make_solver(solver)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9", "http://127.0.0.1:99999/", "http://127.0.0.1:x/", "http://[::1"])
def test_an_endpoint_that_is_none_is_named_with_where_it_is_set(monkeypatch, endpoint):
    monkeypatch.setenv("DWAVE_API_TOKEN", SECRET)
    monkeypatch.setenv("DWAVE_API_ENDPOINT", endpoint)
    solver = make_solver("dwave", max_qpu_seconds=1.0)
    with pytest.raises(RuntimeError, match=r"cannot open D-Wave's service.*dwave ping") as raised:
        solver.solve(random_family(4, 2, 8))
    shown = "".join(traceback.format_exception(raised.value)) + repr(solver)
    assert SECRET not in shown
