import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


QUOTED = re.compile(r"(−?[\d.]+)( ?%| ms| µs)?<!-- from: ([\w./-]+\.json) ([\w/ ]+) -->")
UNITS = {"%": 100, "ms": 1e3, "µs": 1e6, "": 1}


def misquoted(text):
    """The quotations in a text whose number is not the one in the file that it names, and those that cannot be read."""
    found = []
    for number, unit, file, path in QUOTED.findall(text):
        value = json.loads((ROOT / "reproduction" / "results" / file).read_text(encoding="utf-8"))
        for part in path.split("/"):
            value = value[int(part)] if isinstance(value, list) else value[part]
        decimals = len(number.partition(".")[2])
        if f"{value * UNITS[unit.strip()]:.{decimals}f}" != number.replace("−", "-"):
            found.append(f"{number}{unit} is {value} in {file}, {path}")
    return found + ["not readable"] * (text.count("<!-- from:") - len(QUOTED.findall(text)))


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_every_number_that_names_a_file_is_the_one_in_it(path):
    assert misquoted(path.read_text(encoding="utf-8")) == []
