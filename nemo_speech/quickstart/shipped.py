"""Where the example scripts and configurations lie: in the checkout, or in the wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def shipped_path(relative: str) -> Path:
    """Path of a script or config that ships with the package, such as `examples/speechlm2/salm_train.py`.

    The checkout comes first, so that an editable install runs what is being edited; a wheel has the same tree under
    `nemo_speech/_shipped`.

    Raises:
        FileNotFoundError: Neither has it: the installation is damaged.
    """
    places = [PACKAGE.parent / relative, PACKAGE / '_shipped' / relative]
    # site-packages may hold an unrelated `examples` folder: a checkout is known by its pyproject.toml.
    if not (PACKAGE.parent / 'pyproject.toml').is_file():
        del places[0]
    for place in places:
        if place.exists():
            return place
    raise FileNotFoundError(
        f'{relative} is missing from this installation (looked at {", ".join(map(str, places))}): '
        'pip install --force-reinstall --no-deps nemo_speech'
    )
