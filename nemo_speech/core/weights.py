"""Whether weights and checkpoints fit a model, said in names and shapes before anything is changed."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from nemo_speech.core.errors import CheckpointError
from nemo_speech.core.optim import optimizer_class
from nemo_speech.utils.logging import get_logger

logger = get_logger(__name__)
_ADVICE = 'Undo the change of the configuration, or start a new run (another exp_manager.explicit_log_dir or exp_dir).'


def copy_weights(module: nn.Module, weights: Mapping[str, Tensor], *, source: str, strict: bool = True) -> None:
    """Copy weights into a module.

    Args:
        module: Receives them.
        weights: By parameter and buffer name.
        source: Where they came from, for messages.
        strict: Missing and unexpected names are errors, not warnings. Wrong shapes always are errors.

    Raises:
        CheckpointError: Names the tensors.
    """
    check_weights(module, weights, source=source, strict=strict)
    own = module.state_dict().keys()
    module.load_state_dict({k: v for k, v in weights.items() if k in own}, strict=False)


def check_weights(
    module: nn.Module, weights: Mapping[str, Tensor], *, source: str, strict: bool = True, advice: str = ''
) -> None:
    """Raise or warn as `copy_weights` would; `advice` ends the message."""
    own = module.state_dict()
    wrong = [
        f'{k} {list(weights[k].shape)} instead of {list(own[k].shape)}'
        for k in own
        if k in weights and isinstance(own[k], Tensor) and weights[k].shape != own[k].shape
    ]
    missing, unexpected = [k for k in own if k not in weights], [k for k in weights if k not in own]
    faults = [
        _listed(what, names)
        for what, names in (('missing', missing), ('unexpected', unexpected), ('of another shape', wrong))
        if names
    ]
    if faults and (strict or wrong):
        message = f"{source} does not fit {type(module).__name__}: {'; '.join(faults)}."
        raise CheckpointError(f'{message} {advice}'.rstrip())
    if faults:
        logger.warning('%s: %s', source, '; '.join(faults))


def check_resumable(model: Any, checkpoint: Mapping[str, Any]) -> None:
    """Say now, in terms of the configuration, why training cannot go on from a checkpoint.

    Args:
        model: A `ModelPT` that a trainer may be about to resume.
        checkpoint: Lightning's, as read.

    Raises:
        CheckpointError: Its tensors are not the model's, or its optimizer is of another class or other parameters.
    """
    trainer = model._trainer
    source = str(trainer.ckpt_path) if trainer is not None and trainer.ckpt_path else 'the checkpoint'
    check_weights(model, checkpoint['state_dict'], source=source, advice=_ADVICE)
    if trainer is None or not trainer.training or not checkpoint.get('optimizer_states'):
        return
    _check_optimizer_class(model, checkpoint, source)
    num_before = sum(len(group['params']) for group in checkpoint['optimizer_states'][0]['param_groups'])
    num_now = sum(p.requires_grad for p in model.parameters())
    if num_before != num_now:
        raise CheckpointError(
            f'{source} trained {num_before} tensors, this configuration trains {num_now}: freeze_params, '
            f'prevent_freeze_params or lora differ. {_ADVICE}'
        )


def _check_optimizer_class(model: Any, checkpoint: Mapping[str, Any], source: str) -> None:
    plan = model.optimization()
    section = plan.optimizer_path.removeprefix('model.')
    before = checkpoint.get('hyper_parameters', {}).get('cfg', {}).get(section)
    if not before or not plan.optimizer:
        return
    old, new = (optimizer_class(cfg, path=plan.optimizer_path).__name__ for cfg in (before, plan.optimizer))
    if old != new:
        raise CheckpointError(f'{source} was trained with {old}, {plan.optimizer_path} is {new}. {_ADVICE}')


def _listed(what: str, names: list[str], shown: int = 5) -> str:
    more = f' and {len(names) - shown} more' if len(names) > shown else ''
    return f"{len(names)} {what}: {', '.join(names[:shown])}{more}"
