"""The doctor: core parts really work here, and what does not is said by name."""

import pytest

from nemo_speech import doctor


@pytest.mark.parametrize('check', [c for c in doctor.CHECKS if c.core], ids=lambda check: check.name)
def test_core_parts_work(check):
    assert check.run()


def test_doctor_is_content_where_core_parts_work(monkeypatch, capsys):
    def absent():
        raise ImportError('not here')

    checks = (doctor.Check('good', lambda: 'well'), doctor.Check('extra', absent, core=False))
    monkeypatch.setattr(doctor, 'CHECKS', checks)
    monkeypatch.setattr(doctor, 'PACKAGES', (doctor.Package('torch', 'all'), doctor.Package('no-such', 'fun', 'te')))
    assert doctor.run_doctor() == 0
    out = capsys.readouterr().out
    assert 'well' in out and 'ImportError: not here' in out and 'pip install "nemo_speech[te]"' in out


def test_doctor_fails_with_a_core_part_and_a_required_package(monkeypatch, capsys):
    def broken():
        raise RuntimeError('libsndfile is too old')

    monkeypatch.setattr(doctor, 'CHECKS', (doctor.Check('audio files', broken),))
    monkeypatch.setattr(doctor, 'PACKAGES', (doctor.Package('no-such-package', 'everything'),))
    assert doctor.run_doctor() == 1
    out = capsys.readouterr().out
    assert 'FAIL audio files' in out and 'libsndfile is too old' in out
    assert 'Not well: no-such-package is missing, audio files.' in out


def test_optional_parts_say_why_they_are_none():
    for check in doctor.CHECKS:
        if not check.core:
            try:
                assert check.run()
            except doctor.FAILURES as error:
                assert str(error)
