"""Models by path, or by their name on the Hugging Face hub."""

from collections.abc import Callable
from pathlib import Path

from nemo_speech.core.errors import ModelNotFoundError


def find_directory(model_id: str | Path, *, revision: str | None = None) -> Path:
    """A local directory, or the local copy of a hub model (fetched if need be).

    Raises:
        ModelNotFoundError: Neither; says what was tried.
    """
    _check_id(model_id)
    if Path(model_id).is_dir():
        return Path(model_id)
    if Path(model_id).is_file():
        raise ModelNotFoundError(
            f'{model_id} is a file; a directory was expected (restore_from reads .nemo archives).'
        )
    from huggingface_hub import snapshot_download

    return _fetch(str(model_id), 'directory', lambda: snapshot_download(str(model_id), revision=revision))


def find_archive(model_id: str | Path, *, revision: str | None = None) -> Path:
    """A local `.nemo` archive, or the local copy of `name.nemo` of the hub model `owner/name`, as NeMo has them.

    Raises:
        ModelNotFoundError: Neither; says what was tried.
    """
    _check_id(model_id)
    if Path(model_id).exists():
        return Path(model_id)
    name = str(model_id)
    if name.endswith('.nemo'):
        raise ModelNotFoundError(f'{name}: no such file or directory; a .nemo archive was expected.')
    from huggingface_hub import hf_hub_download

    file = f"{name.rsplit('/', 1)[-1]}.nemo"
    return _fetch(name, '.nemo archive', lambda: hf_hub_download(name, file, revision=revision))


def _check_id(model_id: str | Path) -> None:
    if not isinstance(model_id, (str, Path)) or not str(model_id):
        raise ModelNotFoundError(f"Expected a path, or 'owner/name' on the Hugging Face hub, got {model_id!r}.")


def _fetch(name: str, kind: str, fetch: Callable[[], str]) -> Path:
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(fetch())
    except HFValidationError as err:
        raise ModelNotFoundError(f"'{name}' is no {kind} here, and no 'owner/name' of the Hugging Face hub.") from err
    except LocalEntryNotFoundError as err:
        raise ModelNotFoundError(
            f"'{name}' is no {kind} here, not in the Hugging Face cache, and the hub is out of reach."
        ) from err
    except HfHubHTTPError as err:
        raise ModelNotFoundError(f"'{name}' is no {kind} here, and the Hugging Face hub says: {err}") from err
