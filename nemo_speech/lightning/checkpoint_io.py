"""Lightning checkpoints, read as plain data: resuming from a stranger's `.ckpt` runs none of its code."""

import pickle
from typing import Any

from lightning.fabric.plugins import TorchCheckpointIO

from nemo_speech.core.errors import CheckpointError


class SafeCheckpointIO(TorchCheckpointIO):
    """Loads with `weights_only=True` unless the caller says otherwise, and names the file when that fails."""

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        try:
            return super().load_checkpoint(path, map_location, weights_only=weights_only is not False)
        except pickle.UnpicklingError as err:
            raise CheckpointError(
                f'{path} holds objects other than tensors and plain values. If you trust whoever wrote it, pass '
                f'weights_only=False. ({str(err).splitlines()[0]})'
            ) from err
        except (RuntimeError, EOFError) as err:
            raise CheckpointError(
                f'{path} is damaged ({str(err).splitlines()[0]}); delete it to resume from an older one.'
            ) from err
