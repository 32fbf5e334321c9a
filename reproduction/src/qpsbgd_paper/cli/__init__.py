"""The paper's commands: `qpsbgd demo`, `run`, `report` and `data`."""

from importlib.util import find_spec

_DEMO = ("sklearn", "scipy", "matplotlib", "jinja2", "pydantic", "safetensors", "tqdm")
_PAPER = (*_DEMO, "skimage", "pooch", "torch_geometric", "dwave.system", "minorminer")


def require(command: str) -> None:
    """Raise ImportError, with the line to install, where packages of the extra `paper`, or `demo`, are missing."""
    extra, needed = ("paper", _PAPER) if command == "run" else ("demo", _DEMO)
    missing = [name for name in needed if not _installed(name)]
    if missing:
        raise ImportError(f"`qpsbgd {command}` needs {', '.join(missing)}: pip install 'qpsbgd[{extra}]'")


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False
