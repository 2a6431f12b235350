"""What training needs beside the losses: NeMo's `optim` section, and gradients that are not finite."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from nemo_speech.core.model import Optimization
from nemo_speech.utils.logging import get_logger

logger = get_logger(__name__)
# Of NeMo's schedules; `ReduceLROnPlateau` is asked for by its name here.
_IGNORED = ('reduce_on_plateau',)


def nemo_optimization(optim: Mapping[str, Any]) -> Optimization:
    """`optim` of NeMo's ASR configurations: the optimizer, and its schedule as `sched`."""
    optimizer = {key: value for key, value in optim.items() if key != 'sched'}
    sched = optim.get('sched')
    schedule = None if sched is None else {key: value for key, value in sched.items() if key not in _IGNORED}
    return Optimization(optimizer, schedule, 'model.optim', 'model.optim.sched')


def zero_bad_gradients(model: nn.Module) -> None:
    """Make a step do nothing (`skip_nan_grad`) where a gradient of any rank is NaN or infinite; says so."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    # DDP has averaged them, so all ranks see the same.
    if all(bool(torch.isfinite(g).all()) for g in gradients):
        return
    logger.warning('gradients are not finite; this step is skipped')
    for gradient in gradients:
        gradient.zero_()
