"""Heavy packages that a test loads when it uses them, so that collecting all tests is quick."""

import importlib
import importlib.util

import pytest


class Lazy:
    """A module that is imported when one of its names is first used."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        if attribute.startswith("_"):  # pytest asks every name of a test file for some
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


def skip_without(*packages):
    """Skip a test file where one of these is not installed; none is loaded."""
    for package in packages:
        if importlib.util.find_spec(package.split(".")[0]) is None or importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}", allow_module_level=True)
