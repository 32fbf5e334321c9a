import gzip
import io
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lazy import Lazy
from rewriting import rewritten

from qpsbgd_qubo.files.compressed import MOST_BYTES, gunzip, read_arrays
from qpsbgd_qubo.problem_files import FORMATS, read_problem, save_assignment
from qpsbgd_qubo.problems import bqm_problem, ising_problem, qubo_problem
from qpsbgd_qubo.testing import random_family

dimod, coo, sparse_matrices = Lazy("dimod"), Lazy("dimod.serialization.coo"), Lazy("scipy.sparse")


BEASLEY = "3 4\n1 1 5\n1 2 -3\n2 2 4\n3 3 -1\n"
COO = "# a comment\n0 0 -1\n\n0 1 2  # another\n1 1 -1\n1 1 -2\n"


def written(folder, name, content):
    path = folder / name
    if isinstance(content, str | bytes):
        return rewritten(path, content.encode() if isinstance(content, str) else content)
    np.savez(path, **content)
    return path


def file_of(bqm):
    with bqm.to_file() as file:
        return file.read()


def spins_of(*bits):
    return np.array(bits, dtype=np.float64)[:, None] * 2 - 1


@pytest.mark.parametrize("name", ["p.txt", "p.npz"])
def test_maximizing_and_minimizing_twice_is_doing_so_once(tmp_path, name):
    problem = read_problem(written(tmp_path, name, BEASLEY if name == "p.txt" else {"Q": -np.eye(3)}))
    highest, lowest = (problem.with_sense(maximize=up).with_sense(maximize=up) for up in (True, False))
    assert highest.maximize and not lowest.maximize
    for bits in np.ndindex(2, 2, 2):
        assert (
            highest.energies(spins_of(*bits)) == lowest.energies(spins_of(*bits)) == problem.energies(spins_of(*bits))
        )
        assert highest.family.energies(spins_of(*bits)) == -lowest.family.energies(spins_of(*bits))


@pytest.mark.parametrize("name", ["Q", "qubo"])
def test_a_matrix_in_npz_is_a_qubo(tmp_path, name):
    matrix = np.array([[1, -4], [1, 2]])
    problem = read_problem(written(tmp_path, "p.npz", {name: matrix, "offset": 10}))
    assert problem.vartype == "BINARY"
    assert problem.energies(spins_of(1, 1)).item() == 10
    assert problem.energies(spins_of(0, 1)).item() == 12


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_family_comes_back_bit_for_bit(tmp_path, dtype):
    family = random_family(6, 3, 8, dtype=dtype)
    np.savez(tmp_path / "f.npz", **vars(family))
    back = read_problem(tmp_path / "f.npz").family
    for name in ("quadratic", "linear", "offset"):
        assert np.array_equal(getattr(back, name), getattr(family, name))
        assert getattr(back, name).dtype == dtype


def test_an_assignment_has_the_problems_values_and_labels(tmp_path):
    bqm = dimod.BinaryQuadraticModel({"a": 1.0, "b c": -2.0, ("d", 1): 1.0}, {}, 0.0, "BINARY")
    save_assignment(tmp_path / "s.txt", bqm_problem(bqm), spins_of(0, 1, 0), comments=["energy: -2"])
    text = (tmp_path / "s.txt").read_text(encoding="utf-8")
    assert text == '# energy: -2\na 0\n"b c" 1\n"(\'d\', 1)" 0\n'


def test_an_assignment_with_numbers_as_labels_is_read_by_numpy(tmp_path):
    problem = read_problem(written(tmp_path, "p.npz", {"quadratic": np.eye(2), "linear": np.ones((2, 3))}))
    save_assignment(tmp_path / "s.txt", problem, np.array([[1.0, -1, 1], [-1, -1, 1]]))
    assert np.loadtxt(tmp_path / "s.txt").tolist() == [[0, 1, -1, 1], [1, -1, -1, 1]]


BAD = {
    "unknown suffix": ("p.csv", "0 0 1\n", r"must end in \.txt, .*got '\.csv'; .*--format NAME"),
    "no problem": ("p.txt", "0\n", "holds no problem"),
    "no text": ("p.txt", b"\xff\xfe\x00\x81", "UTF-8"),
    "no problem left": ("p.txt", "1\n", "ends before problem 1 of 1"),
    "wordy header": ("p.txt", "n 3\n", "line 1 must hold integers"),
    "no variables": ("p.txt", "0 0\n", "at least one variable"),
    "packed damage": ("p.txt.gz", b"not packed", r"not a complete \.gz file"),
    "damaged bqm": ("p.bqm", b"DIMODBQM and then nonsense", "not a complete .bqm file of dimod"),
    "listed bqm": ("p.bqm", b"DIMODBQM\x02\x00\x02\x00\x00\x00[]", "its JSON must be a dict, but is a list"),
    "foreign bqm": ("p.bqm", b"PK", "not a complete .bqm file of dimod"),
    "empty bqm": ("p.bqm", lambda: file_of(dimod.BinaryQuadraticModel("SPIN")), "at least one variable"),
    "damaged npz": ("p.npz", b"PK\x03\x04 and then nonsense", r"not a complete \.npz archive of numpy"),
    "pickled npz": ("p.npz", {"Q": np.array([{}], dtype=object)}, "Object arrays cannot be loaded"),
    "complex npz": ("p.npz", {"Q": np.eye(2) * 1j}, "'Q' must be an array of real numbers, got complex128"),
    "NaN in npz": ("p.npz", {"Q": np.full((2, 2), np.nan)}, "NaN"),
    "NaN in h": ("p.npz", {"h": np.full(2, np.nan), "J": np.eye(2)}, "h must be finite"),
    "NaN in a family": ("p.npz", {"quadratic": np.eye(2), "linear": np.full((2, 1), np.nan)}, "linear holds NaN"),
    "NaN offset": ("p.npz", {"Q": np.eye(2), "offset": np.nan}, "offset must be one finite number"),
    "oblong npz": ("p.npz", {"Q": np.ones((2, 3))}, r"must have shape \(n, n\), got \(2, 3\)"),
    "empty npz": ("p.npz", {"Q": np.ones((0, 0))}, "at least one variable"),
    "short h": ("p.npz", {"h": np.ones(3), "J": np.eye(2)}, r"h must have shape \(n,\) = \(2,\)"),
    "other arrays": ("p.npz", {"weights": np.eye(2)}, r"must hold quadratic.*got \['weights'\]"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path, case):
    name, content, message = BAD[case]
    path = written(tmp_path, name, content() if callable(content) else content)
    with pytest.raises(ValueError, match=message) as caught:
        read_problem(path)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_sparse_matrix_in_npz_is_refused_with_the_format_to_use(tmp_path):
    sparse_matrices.save_npz(tmp_path / "p.npz", sparse_matrices.eye_array(3, format="csr"))
    with pytest.raises(
        ValueError, match=r"'format' must be an array of real numbers.* to \.mtx with scipy\.io\.mmwrite"
    ):
        read_problem(tmp_path / "p.npz")


@pytest.mark.parametrize("name", ["p.bqm.gz", "p.npz.gz", "p.txt.gz"])
def test_a_compressed_file_is_read_like_the_one_inside_it(tmp_path, name):
    inner = tmp_path / name.removesuffix(".gz")
    written(
        tmp_path,
        inner.name,
        {"p.bqm": file_of(dimod.BinaryQuadraticModel({"a": 1.0, "b": 0.0}, {"ab": 2.0}, 3.0, "SPIN"))}.get(
            inner.name, {"Q": np.eye(2)} if inner.name == "p.npz" else COO
        ),
    )
    (tmp_path / name).write_bytes(gzip.compress(inner.read_bytes()))
    for bits in np.ndindex(2, 2):
        assert read_problem(tmp_path / name).energies(spins_of(*bits)) == read_problem(inner).energies(spins_of(*bits))
    for part in (0, 5, -1, -9):
        (tmp_path / name).write_bytes(gzip.compress(inner.read_bytes())[:part])
        with pytest.raises(ValueError, match="p\\."):
            read_problem(tmp_path / name)


def test_the_format_given_wins_over_the_suffix(tmp_path):
    assert read_problem(written(tmp_path, "p.csv", COO), format="coo").labels == (0, 1)
    assert read_problem(written(tmp_path, "p.txt", file_of(dimod.BQM({"a": 1}, {}, "SPIN"))), format="bqm").labels == (
        "a",
    )
    with pytest.raises(ValueError, match=r"unknown format 'gset'; .*beasley, biqmac, maxcut"):
        read_problem(tmp_path / "p.csv", format="gset")


def test_a_bqm_file_is_read_without_dimod(tmp_path, monkeypatch):
    path = written(tmp_path, "p.bqm", file_of(dimod.BinaryQuadraticModel({"a": 1.0}, {}, 3.0, "SPIN")))
    monkeypatch.setitem(sys.modules, "dimod", None)
    problem = read_problem(path)
    assert problem.labels == ("a",)
    assert problem.energies(spins_of(0)).item() == 2


@pytest.mark.parametrize(
    ("version", "dtype", "vartype"), [(1, np.float32, "SPIN"), (2, np.float64, "BINARY"), (2, np.float32, "SPIN")]
)
def test_bqm_files_of_every_kind_are_read_as_dimod_reads_them(tmp_path, version, dtype, vartype):
    whole = dimod.generators.gnp_random_bqm(7, 0.6, vartype, random_state=3)
    labels = [0, "b c", ("d", 1), -4, 2.5, ("e", ("f",)), "ü"]
    bqm = dimod.BinaryQuadraticModel(whole, dtype=dtype).relabel_variables(dict(enumerate(labels)), inplace=False)
    bqm.offset = 0.25
    with bqm.to_file(version=version) as file:
        problem = read_problem(written(tmp_path, "p.bqm", file.read()))
    assert problem.labels == tuple(bqm.variables)
    assert problem.vartype == vartype
    for bits in np.ndindex(*[2] * 7):
        values = dict(zip(problem.labels, problem.values(spins_of(*bits))[:, 0].tolist(), strict=True))
        assert problem.energies(spins_of(*bits)).item() == pytest.approx(bqm.energy(values), rel=1e-6)


TEXTS = {
    "p.txt": BEASLEY,
    "p.coo": COO,
    "p.rud": "4 3\n1 2 1\n2 3 -1\n3 4 1\n",
    "p.sparse": BEASLEY,
    "p.qubo": "c a\np qubo 0 2 2 1\n0 0 1\n1 1 -1\n0 1 2\n",
    "p.mtx": "%%MatrixMarket matrix coordinate real symmetric\n% a\n2 2 2\n1 1 1\n2 1 -3\n",
    "several.txt": f"2\n{BEASLEY}1 1\n1 1 7\n",
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([*TEXTS, "p.bqm", "p.npz", "p", "p.1.gz"]),
    st.one_of(
        st.binary(max_size=60),
        st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.lists(
            st.sampled_from([*"0123 4-9\n\n\t#%cp.e_", " 1 2", "\n1 2 3", "99999999999999999999", "nan", "2 1\n"])
        ).map(lambda parts: "".join(parts).encode()),
    ),
    st.sampled_from([None, *FORMATS]),
    st.sampled_from([None, 0, 1, 2]),
)
def test_any_content_is_read_or_refused_in_one_line(tmp_path, name, content, format, number):
    path = written(tmp_path, name, gzip.compress(content) if name.endswith(".gz") else content)
    try:
        problem = read_problem(path, format=format, number=number)
    except ValueError as error:
        assert str(error).startswith(f"{path}: ")
        assert "\n" not in str(error)
    else:
        assert problem.format in FORMATS


def damaged(whole, generator):
    """The content with a byte changed, a bit flipped, a piece missing, doubled or zeroed."""
    content = bytearray(whole)
    place, other = sorted(generator.integers(len(whole), size=2).tolist())
    kind = generator.integers(5)
    if kind == 0:
        content[place] = generator.integers(256)
    elif kind == 1:
        content[place] ^= 1 << generator.integers(8)
    elif kind == 2:
        del content[place:other]
    elif kind == 3:
        content[place:place] = content[place:other]
    else:
        content[place : place + 4] = bytes(len(content[place : place + 4]))
    return bytes(content)


@pytest.mark.parametrize("name", ["labelled.bqm", "plain.bqm", "old.bqm", "stored.npz", "packed.npz", *TEXTS])
def test_damaged_files_are_read_or_refused_in_one_line_and_nothing_else_happens(tmp_path, name):
    bqm = dimod.generators.gnp_random_bqm(6, 0.7, "SPIN", random_state=0)
    named = bqm.relabel_variables(dict(enumerate("abcdef")), inplace=False)
    family = random_family(6, 2, 8)
    arrays = {part: getattr(family, part) for part in ("quadratic", "linear", "offset")}
    path = tmp_path / name
    if name == "stored.npz":
        np.savez(path, **arrays)
    elif name == "packed.npz":
        np.savez_compressed(path, **arrays)
    else:
        written(tmp_path, name, TEXTS.get(name) or file_of(named if name == "labelled.bqm" else bqm))
    if name == "old.bqm":
        with named.to_file(version=1) as file:
            path.write_bytes(file.read())
    whole = path.read_bytes()
    generator = np.random.default_rng(1)
    refused = 0
    for _ in range(80):
        written(tmp_path, name, damaged(whole, generator))
        try:
            read_problem(path)
        except (ValueError, MemoryError) as error:
            refused += 1  # MemoryError: an archive of a huge array
            assert str(path) in str(error)
            assert "\n" not in str(error)
    assert refused > 12


def test_no_flipped_bit_of_the_header_of_a_bqm_file_changes_the_problem(tmp_path):
    content = file_of(dimod.BQM({"a": 1.0, "b": 2.0}, {"ab": 3.0}, "SPIN"))
    for bit in range(8 * content.index(b"\n")):
        flipped = content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]
        with pytest.raises((ValueError, MemoryError), match=r"p\.bqm"):
            read_problem(written(tmp_path, "p.bqm", flipped))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:8] + bytes([3]) + content[9:], r"its version must be 1\.0 or 2\.0, got 3\.0"),
        (lambda content: content[:9] + bytes([1]) + content[10:], r"its version must be 1\.0 or 2\.0, got 2\.1"),
        (lambda content: content.replace(b'"shape": [2, 1]', b'"shape": "two" '), "the shape is 'two'"),
        (lambda content: content.replace(b'"shape": [2, 1]', b'"shape": [2.0,1'), "its JSON is damaged"),
        (lambda content: content.replace(b'"shape": [2, 1]', b'"shape": [2, 2]'), "cannot have 2 interactions"),
        (lambda content: content.replace(b"BinaryQuadratic", b"DiscreteQuadrat"), "must say that it is a Binary"),
        (lambda content: content.replace(b'"variables": true', b'"variables": "ab"'), "must say that it is a Binary"),
        (lambda content: content.replace(b"SPIN", b"SPAN"), "the vartype is 'SPAN'"),
        (lambda content: content.replace(b"float64", b"float16"), "the dtype is 'float16'"),
        (lambda content: content.replace(b'"itype": "int32"', b'"itype": "int33"'), "the itype is 'int33'"),
        (lambda content: content.replace(b"VARS", b"VIRS"), "the variables' labels are missing"),
        (lambda content: content.replace(b'["a", "b"]', b'["a", "a"]'), "it must name 2 different variables"),
        (lambda content: content.replace(b'["a", "b"]', b'["a", {} ]'), "a variable's label is a mapping"),
        (
            lambda content: content.replace(b'["a", "b"]', b'{"a":  0}'.ljust(10)),
            "its JSON must be a list, but is a di",
        ),
        (lambda content: content + b"x", "something follows its end"),
        (lambda content: content[:-1], "it is cut off"),
    ],
)
def test_the_header_of_a_bqm_file_says_what_is_wrong_with_it(tmp_path, damage, message):
    content = file_of(dimod.BQM({"a": 1.0, "b": 2.0}, {"ab": 3.0}, "SPIN"))
    with pytest.raises(ValueError, match=message):
        read_problem(written(tmp_path, "p.bqm", damage(content)))


def zipped(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def npy(shape, *, data=b"", descr="<f8"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


@pytest.fixture
def limit(request, monkeypatch):
    """The bytes that a compressed file may expand to, or a hundredth of them: readers count the same way."""
    most = MOST_BYTES if request.param == "as it is" else MOST_BYTES // 100
    for reader in (gunzip, read_arrays):
        assert reader.__kwdefaults__["most"] == MOST_BYTES
        monkeypatch.setitem(reader.__kwdefaults__, "most", most)
    return most


def write_bomb(path, n, *names):
    """An archive of matrices (n, n) of zeros, a thousand times smaller than its content."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in names:
            with archive.open(f"{name}.npy", "w") as member:
                member.write(npy((n, n)))
                for _ in range(n):
                    member.write(bytes(8 * n))


@pytest.mark.parametrize("limit", ["a hundredth"], indirect=True)
@pytest.mark.parametrize(("n", "names"), [(600, ["Q"]), (350, ["quadratic", "linear", "more"])])
def test_a_small_archive_of_huge_arrays_is_refused_before_anything_is_loaded(tmp_path, monkeypatch, limit, n, names):
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("it was loaded"))
    write_bomb(tmp_path / "p.npz", n, *names)
    assert (tmp_path / "p.npz").stat().st_size < 30_000
    with pytest.raises(MemoryError, match=r"arrays take 0\.002(88|94) GB; .* 0\.00268 GB"):
        read_problem(tmp_path / "p.npz")


@pytest.mark.parametrize(
    ("name", "limit"),
    [("p.bqm.gz", "as it is"), *((name, "a hundredth") for name in ("p.npz.gz", "p.coo.gz", "p.gz"))],
    indirect=["limit"],
)
def test_a_compressed_file_is_not_expanded_beyond_the_limit(tmp_path, name, limit):
    # Zeros, packed piece by piece: a `.gz` file may have several members.
    (tmp_path / name).write_bytes(gzip.compress(bytes(1_000_000), 1) * (limit // 1_000_000 + 1))
    with pytest.raises(MemoryError, match=r"p\..*gz: .*more than 0\.(268|00268) GB"):
        read_problem(tmp_path / name)


def test_an_array_that_is_not_as_large_as_its_header_says_is_refused(tmp_path):
    zipped(tmp_path / "p.npz", **{"Q.npy": npy((9_000, 9_000), data=bytes(16))})
    with pytest.raises(ValueError, match=r"p\.npz: is not a complete \.npz archive"):
        read_problem(tmp_path / "p.npz")


@pytest.mark.parametrize("member", ["notes.txt", "Q", "folder/"])
def test_a_member_that_is_no_array_is_named(tmp_path, member):
    zipped(tmp_path / "p.npz", **{"Q.npy": npy((1, 1), data=bytes(8)), member: b"text"})
    with pytest.raises(ValueError, match=r"p\.npz: .* must be an array of real numbers, got bytes"):
        read_problem(tmp_path / "p.npz")


def test_qubo_and_ising_problems_agree_with_dimod():
    generator = np.random.default_rng(0)
    matrix, fields = generator.normal(size=(5, 5)), generator.normal(size=5)
    qubo = dimod.BinaryQuadraticModel.from_qubo({(i, j): matrix[i, j] for i in range(5) for j in range(5)}, 0.5)
    couplings = {(i, j): matrix[i, j] + matrix[j, i] for i in range(5) for j in range(i)}
    ising = dimod.BinaryQuadraticModel(dict(enumerate(fields)), couplings, 0.5 + matrix.trace(), "SPIN")
    for bits in np.ndindex(*[2] * 5):
        spins = spins_of(*bits)
        assert qubo_problem(matrix, offset=0.5).energies(spins).item() == pytest.approx(qubo.energy(list(bits)))
        ours = ising_problem(fields, matrix, offset=0.5).energies(spins).item()
        assert ours == pytest.approx(ising.energy([2 * b - 1 for b in bits]))


@pytest.mark.parametrize(
    ("places", "neighbours", "biases", "message"),
    [
        ([0, 2, 3], [1, 2, 0, 0], [1, 2, 1, 2], None),
        ([0, 2, 3], [1, 2, 0, 0], [1, 2, 1, 3], "differ from their transpose"),
        ([0, 2, 3], [1, 2, 0, 1], [1, 2, 1, 2], "filled on one side of the diagonal only"),
        ([0, 2, 4], [1, 1, 0, 0], [1, 1, 1, 1], "columns must ascend within a row"),
        ([0, 2, 3], [1, 3, 0, 0], [1, 2, 1, 2], "indices must be from 0 to n - 1 = 2, got 3"),
        ([0, 2, 3], [1, 0, 0, 0], [1, 2, 1, 2], "the diagonal must be empty"),
        ([0, 3, 2], [1, 2, 0, 0], [1, 2, 1, 2], "indptr must ascend"),
        ([1, 2, 3], [1, 2, 0, 0], [1, 2, 1, 2], "indptr must ascend"),
    ],
)
def test_couplings_of_a_bqm_file_that_contradict_each_other_are_refused(tmp_path, places, neighbours, biases, message):
    content = file_of(dimod.BinaryQuadraticModel({0: 0.0, 1: 0.0, 2: 0.0}, {(0, 1): 1.0, (0, 2): 2.0}, 0.0, "SPIN"))
    entry = [("index", "<i4"), ("bias", "<f8")]
    linear = np.array([(place, 0.0) for place in places], dtype=entry)
    quadratic = np.array(list(zip(neighbours, biases, strict=True)), dtype=entry)
    path = written(tmp_path, "p.bqm", content[: -7 * 12] + linear.tobytes() + quadratic.tobytes())
    if message is None:
        assert path.read_bytes() == content
        return
    with pytest.raises(ValueError, match=message):
        read_problem(path)
