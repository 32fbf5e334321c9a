import pytest
import torch


@pytest.fixture(autouse=True)
def _repeatable():
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(min(2, threads))
    yield
    torch.set_num_threads(threads)
