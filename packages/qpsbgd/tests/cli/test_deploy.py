import pytest
from torch import nn
from typer.testing import CliRunner

from qpsbgd.cli.app import application
from qpsbgd.deploy import pack
from qpsbgd.nn import BinaryConv2d, BinaryLinear, SignActivation


@pytest.fixture
def packed(tmp_path):
    model = nn.Sequential(SignActivation(), BinaryLinear(20, 30), SignActivation(), BinaryLinear(30, 3))
    pack(model, tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors"


def deploy(*arguments):
    done = CliRunner().invoke(application(), ["deploy", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return " ".join(done.output.split())


def test_a_packed_file_becomes_c_with_its_flash_and_ram_printed(packed, tmp_path):
    text = deploy(packed, "--to", "c", "-o", tmp_path / "c", "--name", "digits")
    assert "bytes of constants (flash)" in text and "bytes of buffers (RAM)" in text
    names = ["digits.c", "digits.h", "digits_main.c", "digits_test.c"]
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == names


def test_the_layout_of_c_is_chosen_and_its_files_are_not_replaced_either(packed, tmp_path):
    made = ("--to", "c", "-o", tmp_path / "c", "--layout", "arduino")
    deploy(packed, *made)
    assert (tmp_path / "c" / "library.properties").is_file() and (tmp_path / "c" / "src" / "network.h").is_file()
    with pytest.raises(FileExistsError, match=r"network\.h is there already"):
        deploy(packed, *made)


@pytest.mark.parametrize("name", ["digits.h", "digits_test.c"])
def test_no_file_of_c_is_replaced_unless_that_is_asked_for(name, packed, tmp_path):
    (tmp_path / name).write_text("mine")
    with pytest.raises(FileExistsError, match=rf"{name} is there already: --force overwrites it"):
        deploy(packed, "--to", "c", "-o", tmp_path, "--name", "digits")
    assert (tmp_path / name).read_text() == "mine"
    deploy(packed, "--to", "c", "-o", tmp_path, "--name", "digits", "--force")
    assert (tmp_path / name).read_text() != "mine"


@pytest.mark.parametrize("to", ["c", "onnx"])
def test_a_shape_that_the_network_does_not_take_is_refused_and_nothing_is_written(to, packed, tmp_path):
    with pytest.raises(ValueError, match=r"takes 20 numbers .*got shape \(28, 28\)"):
        deploy(packed, "--to", to, "-o", tmp_path / "out", "--input-shape", "28,28")
    assert not (tmp_path / "out").exists()


def test_a_packed_file_becomes_onnx(packed, tmp_path):
    deploy(packed, "--to", "onnx", "-o", tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx").stat().st_size > 0
    with pytest.raises(FileExistsError, match="is there already: --force overwrites it"):
        deploy(packed, "--to", "onnx", "-o", tmp_path / "net.onnx")


def test_images_need_their_shape(tmp_path):
    pack(nn.Sequential(SignActivation(), BinaryConv2d(1, 2, 3)), tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match="give input_shape"):
        deploy(tmp_path / "net.safetensors", "--to", "onnx", "-o", tmp_path / "net.onnx")
    deploy(tmp_path / "net.safetensors", "--to", "onnx", "-o", tmp_path / "net.onnx", "--input-shape", "1,5,5")
    with pytest.raises(ValueError, match="positive numbers"):
        deploy(tmp_path / "net.safetensors", "--to", "onnx", "-o", tmp_path / "net.onnx", "--input-shape", "1,-5")


def test_the_models_own_file_is_not_overwritten(packed):
    with pytest.raises(ValueError, match="own file"):
        deploy(packed, "--to", "onnx", "-o", packed)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text.txt").write_text("hello")
    with pytest.raises(ValueError, match="not a packed model"):
        deploy(tmp_path / "text.txt", "--to", "c", "-o", tmp_path / "c")
    with pytest.raises(FileNotFoundError):
        deploy(tmp_path / "nothing", "--to", "c", "-o", tmp_path / "c")
