"""Fetching over real HTTP from a server of the test's own, and through downloaders that fail in known ways."""

import json
import os
import threading
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nemo_speech.quickstart import download
from nemo_speech.quickstart.download import SourceUnavailable, fetch_from_debian, fetch_from_hub, fetch_url

WEIGHTS = b'weights' * 1000


class Hub(BaseHTTPRequestHandler):
    """A hub with one repository: a listing with SHA-256s, and files behind a redirect."""

    digest = sha256(WEIGHTS).hexdigest()

    def do_HEAD(self):
        self.answer(200, b'')

    def do_GET(self):
        if self.path == '/api/models/me/tiny/tree/main':
            files = [
                {'type': 'file', 'path': 'config.json', 'size': 2},
                {'type': 'file', 'path': 'model.safetensors', 'size': 7000, 'lfs': {'oid': self.digest}},
                {'type': 'file', 'path': 'flax_model.msgpack', 'size': 1},
                {'type': 'directory', 'path': 'onnx'},
            ]
            self.answer(200, json.dumps(files).encode())
        elif self.path == '/me/tiny/resolve/main/model.safetensors':
            self.answer(302, b'', {'Location': '/cdn/abc'})
        elif self.path in ('/cdn/abc', '/short'):
            self.answer(200, WEIGHTS, cut=self.path == '/short')
        elif self.path == '/me/tiny/resolve/main/config.json':
            self.answer(200, b'{}')
        else:
            self.answer(404, b'')

    def answer(self, status, body, headers=None, cut=False):
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body[: len(body) // 2] if cut else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch):
    download._host_problem.cache_clear()
    monkeypatch.delenv('HF_HUB_OFFLINE', raising=False)
    with ThreadingHTTPServer(('127.0.0.1', 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv('HF_ENDPOINT', f'http://127.0.0.1:{server.server_port}')
        yield f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


def test_hub_gives_the_wanted_files(hub, tmp_path):
    fetch_from_hub('me/tiny', tmp_path, ('.json', '.safetensors'))
    assert {p.name: p.stat().st_size for p in tmp_path.iterdir()} == {'config.json': 2, 'model.safetensors': 7000}


def test_hub_file_with_a_wrong_checksum_is_refused(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(Hub, 'digest', '0' * 64)
    with pytest.raises(SourceUnavailable, match='model.safetensors arrived with sha256'):
        fetch_from_hub('me/tiny', tmp_path, ('.json', '.safetensors'))


def test_hub_without_the_repository_or_told_to_stay_offline(hub, tmp_path, monkeypatch):
    with pytest.raises(SourceUnavailable, match='Not Found'):
        fetch_from_hub('me/none', tmp_path, ('.json',))
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    with pytest.raises(SourceUnavailable, match='HF_HUB_OFFLINE is set'):
        fetch_from_hub('me/tiny', tmp_path, ('.json',))


def test_url_that_ends_early_is_refused(hub, tmp_path):
    with pytest.raises(SourceUnavailable, match='/short'):
        fetch_url(f'{hub}/short', tmp_path / 'x')


def test_a_host_that_is_not_there_is_named(tmp_path):
    download._host_problem.cache_clear()
    with pytest.raises(SourceUnavailable, match='http://host.invalid cannot be reached'):
        fetch_url('http://host.invalid/x', tmp_path / 'x')


def write_apt(directory, body: str) -> None:
    directory.mkdir()
    script = directory / 'apt-get'
    script.write_text(f'#!/bin/sh\n{body}\n')
    script.chmod(0o755)


def test_apt_without_lists_gets_lists_of_its_own(tmp_path, monkeypatch):
    # A stand-in for apt-get that knows packages only with a state directory of the caller's.
    write_apt(
        tmp_path / 'bin',
        'case "$*" in *Dir::State=*update) exit 100;; *Dir::State=*) touch a.deb b.deb;;'
        ' *) echo "E: Unable to locate package a" >&2; exit 100;; esac',
    )
    monkeypatch.setenv('PATH', f'{tmp_path / "bin"}{os.pathsep}{os.environ["PATH"]}')
    target = tmp_path / 'target'
    target.mkdir()
    assert [p.name for p in fetch_from_debian(['a', 'b'], target, 10)] == ['a.deb', 'b.deb']


def test_apt_that_fails_is_quoted_and_a_system_without_it_named(tmp_path, monkeypatch):
    write_apt(tmp_path / 'bin', 'echo "W: noise"; echo "E: Unable to locate package a" >&2; exit 100')
    monkeypatch.setenv('PATH', f'{tmp_path / "bin"}{os.pathsep}{os.environ["PATH"]}')
    target = tmp_path / 'target'
    target.mkdir()
    with pytest.raises(SourceUnavailable, match='apt-get failed for a: E: Unable to locate package a'):
        fetch_from_debian(['a'], target, 10)
    monkeypatch.setenv('PATH', str(tmp_path))
    with pytest.raises(SourceUnavailable, match='no apt-get'):
        fetch_from_debian(['a'], target, 10)


def test_a_downloader_that_stalls_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(download, 'STALL_TIMEOUT_S', 0.3)
    with pytest.raises(SourceUnavailable, match='nothing arrived'):
        download._run_watched(['sleep', '60'], tmp_path, 'a thing', 10)
