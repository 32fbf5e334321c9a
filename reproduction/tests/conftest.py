import functools
import gc
import hashlib
import http.server
import os
import threading
from pathlib import Path

import pytest
from suite import *  # noqa: F403

from qpsbgd_paper.datasets import files
from qpsbgd_paper.datasets.files import locate


@pytest.fixture
def published(monkeypatch):
    """A function that makes sure that a published file is there, and skips the test where it is not."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    if "QPSBGD_DATA" not in os.environ and beside.is_dir():
        monkeypatch.setenv("QPSBGD_DATA", str(beside))

    def present(file):
        if "QPSBGD_DATA" not in os.environ:
            pytest.skip("QPSBGD_DATA names no folder with the published data")
        try:
            locate(file)
        except FileNotFoundError as error:
            pytest.skip(str(error))

    return present


@pytest.fixture
def publish(monkeypatch, tmp_path):
    """A function that lets files with this content be the only published ones, and writes them to a folder."""

    def publish(contents, *, origin="http://127.0.0.1:9/"):
        folder = tmp_path / "published"
        for name, content in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        checksums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
        monkeypatch.setattr(files, "CHECKSUMS", checksums)
        monkeypatch.setattr(
            files, "ORIGINS", {name.split("/")[0]: f"{origin}{name.split('/')[0]}/" for name in contents}
        )
        return folder

    return publish


class Origin(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        if not self.server.cut_short:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"the first part")
        return None

    def log_message(self, *arguments):
        pass


@pytest.fixture
def origin(monkeypatch, tmp_path):
    """A server on this machine that gives what is in the folder `published`; `asked` are the paths it was asked for."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = functools.partial(Origin, directory=str(tmp_path / "published"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.asked, server.cut_short = [], False
        server.address = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
        gc.collect()  # what requests leaves open after failed downloads is closed here, not during other tests
