import tracemalloc

import numpy as np
import pytest

from qpsbgd_qubo.formats.text import TextFile
from qpsbgd_qubo.problem_files import read_problem


def dense_file(path, n):
    """A QUBO after Palubeckis: every entry of the upper triangle, integers up to ±100; gives its values."""
    values = np.random.default_rng(0).integers(1, 101, n * (n + 1) // 2)
    rows, cols = (part + 1 for part in np.triu_indices(n))
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{n} {len(values)}\n")
        file.writelines(f"{i} {j} {v}\n" for i, j, v in zip(rows.tolist(), cols.tolist(), values.tolist(), strict=True))
    return values


@pytest.mark.parametrize("name", ["p.txt", "p.sparse"])
def test_a_good_file_is_read_by_numpy_and_not_line_by_line(tmp_path, monkeypatch, name):
    values = dense_file(tmp_path / name, 100)
    seen, data = [], TextFile._data
    monkeypatch.setattr(TextFile, "_data", lambda *args: (seen.append(line) or line for line in data(*args)))
    problem = read_problem(tmp_path / name)
    assert len(seen) < 10
    assert problem.model.num_couplings == 100 * 99 // 2
    assert abs(problem.model.energy(np.ones(100))) == 2 * values.sum() - values[np.equal(*np.triu_indices(100))].sum()


def test_a_dense_file_takes_little_memory_per_entry(tmp_path):
    values = dense_file(tmp_path / "p.txt", 500)
    tracemalloc.start()
    problem = read_problem(tmp_path / "p.txt")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert problem.model.num_couplings == 500 * 499 // 2
    assert peak < 150 * len(values)


@pytest.mark.parametrize(
    "line", ["1", "1 2 3 4", "a 2 3", "1 2 3e", "1 5 1", "-1 1 1", "1 1 inf", "1.0 1 1", "1;1;1", "1 1 0x1"]
)
def test_the_first_bad_line_is_the_one_reported(write, line):
    for place in range(4):
        lines = ["1 1 1", "1 2 1", "2 2 1", "2 3 1", *[line] * place]
        lines[place] = line
        file = TextFile(write("p.txt", "".join(f"# c\n{text}\n" for text in lines)))
        with pytest.raises(ValueError, match=rf"^line {2 * place + 2}\b.*got {line!r}$"):
            file.entries(skip=0, first=1, last=3)
