"""Folders of generated C as their tools take them."""

import json
import re
import shutil
import subprocess

import pytest
import torch
from compiled_c import COMPILERS, STRICT, built, needs_compiler, ran
from torch import nn

from qpsbgd.deploy import to_c
from qpsbgd.nn import BinaryConv2d, BinaryLinear, QuantActivation, SignActivation

ARDUINO = """\
#include <cstdio>
struct Port {
    void begin(long) {}
    explicit operator bool() const { return true; }
    void print(const char *text) { std::printf("%s", text); }
    void print(long number) { std::printf("%ld", number); }
    void println(const char *text) { std::printf("%s\\n", text); }
    void println(long number) { std::printf("%ld\\n", number); }
    void println(unsigned long number) { std::printf("%lu\\n", number); }
} Serial;
unsigned long millis() { return 0; }
unsigned long micros() { return 0; }
void delay(unsigned long) {}
"""
needs_cpp = pytest.mark.skipif(not (COMPILERS and shutil.which("g++")), reason="gcc and g++ are not installed")


@pytest.mark.parametrize("layout", ["arduino", "platformio"])
@needs_cpp
def test_the_example_of_a_library_runs_the_self_test_and_classifies(layout, dense, tmp_path):
    source = to_c(dense.packed, tmp_path / "kws", name="kws", layout=layout)
    (tmp_path / "Arduino.h").write_text(ARDUINO)
    (example,) = (path for path in source.files if "examples" in path.parts)
    if layout == "arduino":  # a sketch lies in a folder of its name
        assert example.suffix == ".ino" and example.parent.name == example.stem
    (tmp_path / "main.cpp").write_text(f'#include "{example}"\nint main() {{ setup(); loop(); }}\n')
    objects = [str(path.with_suffix(".o")) for path in source.files if path.suffix == ".c"]
    for path in objects:
        subprocess.run([COMPILERS[0], *STRICT, "-c", path[:-1] + "c", "-o", path], check=True)
    folders = [f"-I{tmp_path}", f"-I{source.files[0].parent}"]
    subprocess.run(["g++", "-Wall", *folders, tmp_path / "main.cpp", *objects, "-o", tmp_path / "example"], check=True)
    said = ran(tmp_path / "example", "").stdout
    assert re.fullmatch(r"self-test of kws passed\nclass \d, microseconds 0\n", said)


def test_libraries_name_themselves_and_the_header_to_include(dense, tmp_path):
    to_c(dense.packed, tmp_path / "a", name="kws", layout="arduino")
    lines = (tmp_path / "a" / "library.properties").read_text().splitlines()
    properties = dict(line.split("=", 1) for line in lines)
    required = {"name", "version", "author", "maintainer", "sentence", "paragraph", "category", "url", "architectures"}
    assert required <= set(properties) and all(properties.values())
    assert (properties["name"], properties["includes"]) == ("kws", "kws.h")
    to_c(dense.packed, tmp_path / "p", name="kws", layout="platformio")
    manifest = json.loads((tmp_path / "p" / "library.json").read_text())
    assert (manifest["name"], manifest["headers"]) == ("kws", "kws.h")
    (example,) = manifest["examples"]
    assert all((tmp_path / "p" / example["base"] / file).is_file() for file in example["files"])


@pytest.mark.skipif(not (COMPILERS and shutil.which("cmake")), reason="cmake or a C compiler is not installed")
@pytest.mark.parametrize("name", ["real layers at both ends"])
def test_the_cmake_project_builds_and_passes_its_test(name, network_of, tmp_path):
    to_c(network_of(name).packed, tmp_path, name="kws", layout="cmake")
    for command in (["-S", tmp_path, "-B", tmp_path / "build"], ["--build", tmp_path / "build"]):
        subprocess.run(["cmake", *map(str, command)], check=True, capture_output=True)
    done = subprocess.run(["ctest"], cwd=tmp_path / "build", capture_output=True, text=True)
    assert "100% tests passed, 0 tests failed out of 1" in done.stdout


@needs_cpp
def test_a_program_in_cpp_holds_two_networks(dense, network_of, tmp_path):
    """All files of both are linked; only functions with their names are visible."""
    sources = [
        to_c(dense.packed, tmp_path, name="first"),
        to_c(network_of("8-bit images").packed, tmp_path, name="second"),
    ]
    (tmp_path / "main.cpp").write_text(
        '#include "first.h"\n#include "second.h"\nint main() { return first_self_test() || second_self_test(); }\n'
    )
    parts = [path for source in sources for path in source.files[1:3]]
    objects = [str(path.with_suffix(".o")) for path in parts]
    for path, target in zip(parts, objects, strict=True):
        subprocess.run([COMPILERS[0], *STRICT, "-c", str(path), "-o", target], check=True)
    subprocess.run(["g++", str(tmp_path / "main.cpp"), *objects, "-o", str(tmp_path / "program")], check=True)
    assert ran(tmp_path / "program", "").returncode == 0
    names = subprocess.run(["nm", "-g", "--defined-only", objects[0]], capture_output=True, text=True, check=True)
    visible = {line.split()[-1] for line in names.stdout.splitlines()}
    assert visible == {"first_run", "first_classify"}


@needs_compiler
@pytest.mark.parametrize("name", ["8-bit images", "relu"])
def test_the_self_test_names_the_first_sample_that_differs(name, network_of, tmp_path):
    source = to_c(network_of(name).packed, tmp_path)
    stored = source.files[2].read_text()
    begin, inputs, outputs = re.split(r"(?=static const)", stored)
    assert ran(built(source), "", "--self-test").stdout == "self-test passed\n"
    rows = outputs.split("    {")
    rows[2] = re.sub(r"^(INT64_C\()?(-?)", lambda match: f"{match[0]}7", rows[2])
    source.files[2].write_text(begin + inputs + "    {".join(rows))
    done = ran(built(source), "", "--self-test")
    assert (done.returncode, done.stdout) == (1, "self-test failed: other outputs than stored for sample 2\n")


@needs_compiler
def test_the_self_test_of_integers_holds_where_the_network_ends_with_a_reshape(tmp_path):
    model = nn.Sequential(QuantActivation(), BinaryConv2d(1, 2, 2, bias=True), nn.Flatten()).eval()
    nn.init.constant_(model[1].bias, 0.7)
    source = to_c(model, tmp_path, input_shape=(1, 4, 4))
    assert source.integer
    assert ran(built(source), "", "--self-test").stdout == "self-test passed\n"


def test_a_layout_that_is_not_known_is_refused_with_the_known_ones(tmp_path):
    model = nn.Sequential(SignActivation(), BinaryLinear(4, 2))
    with torch.no_grad(), pytest.raises(ValueError, match="plain, arduino, platformio, cmake, got 'mbed'"):
        to_c(model, tmp_path / "c", layout="mbed")
    assert not (tmp_path / "c").exists()
