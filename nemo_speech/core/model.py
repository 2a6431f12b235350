"""What every public model shares: a typed config, optimizers from it, freezing, `.nemo` archives and Hugging Face
directories.

A subclass gives a config dataclass that extends `ModelConfig`, and overrides the hooks whose default does not fit:
`nemo_config`, `nemo_artifacts`, `from_archive` for `.nemo`; `hf_config`, `hf_state_dict`, `save_extras`,
`from_hf_directory` for directories.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn

from nemo_speech.core.archive import NemoArchive, read_nemo, write_nemo
from nemo_speech.core.devices import find_device
from nemo_speech.core.errors import CheckpointError, ConfigError
from nemo_speech.core.freezing import FreezeReport, freeze_by_patterns
from nemo_speech.core.hub import find_directory
from nemo_speech.core.instantiate import resolve_target
from nemo_speech.core.optim import build_optimizer, build_scheduler, group_parameters
from nemo_speech.core.schema import build_config, config_to_dict
from nemo_speech.core.targets import NEMO_TARGETS, to_nemo_target
from nemo_speech.core.weights import check_resumable, copy_weights
from nemo_speech.utils.logging import get_logger

logger = get_logger(__name__)
WEIGHTS_FILE = 'model.safetensors'
CONFIG_FILE = 'config.json'


@dataclass(kw_only=True)
class ModelConfig:
    """The part of a model's config that training needs.

    Attributes:
        optimizer: `{_target_: torch.optim.AdamW, lr: ...}` or `{name: adamw, lr: ...}`.
        lr_scheduler: `_target_` or `name`, its arguments, and optionally `interval`, `frequency`, `monitor`.
        optim_param_groups: `{params: regex, lr: ..., weight_decay: ...}`; see `core.optim.group_parameters`.
        freeze_params: Regular expressions of parameters that do not train.
        prevent_freeze_params: Regular expressions that win over `freeze_params`.
    """

    optimizer: dict[str, Any] | None = None
    lr_scheduler: dict[str, Any] | None = None
    optim_param_groups: list[dict[str, Any]] = field(default_factory=list)
    freeze_params: list[str] = field(default_factory=list)
    prevent_freeze_params: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Optimization:
    """The configuration of optimizer and schedule, and where it stands, for messages."""

    optimizer: Mapping[str, Any] | None
    lr_scheduler: Mapping[str, Any] | None
    optimizer_path: str = 'model.optimizer'
    lr_scheduler_path: str = 'model.lr_scheduler'


class ModelPT(LightningModule):
    """Base of every public model.

    Args:
        cfg: The config, as `config_class` or a mapping for it.

    Raises:
        ConfigError: The mapping does not fit `config_class`.
    """

    config_class: type[ModelConfig] = ModelConfig

    def __init__(self, cfg: ModelConfig | Mapping[str, Any]):
        super().__init__()
        self.cfg = build_config(self.config_class, cfg, path='model')
        self.save_hyperparameters({'cfg': config_to_dict(self.cfg)}, logger=False)

    # ---- optimization -------------------------------------------------------------------------------------------

    def parameter_names(self) -> Iterable[tuple[list[str], nn.Parameter]]:
        """Every parameter with all names that freeze patterns may call it by."""
        return (([name], parameter) for name, parameter in self.named_parameters())

    def never_frozen(self) -> list[str]:
        """Patterns that win over `freeze_params`."""
        return self.cfg.prevent_freeze_params

    def freeze_parameters(self) -> FreezeReport:
        """Apply the freeze patterns of the config; logs what trains, and warns of patterns that match nothing."""
        report = freeze_by_patterns(self.parameter_names(), self.cfg.freeze_params, self.never_frozen())
        (logger.warning if report.unmatched else logger.info)('%s', report)
        return report

    def optimization(self) -> Optimization:
        """What the configuration says of optimizer and schedule."""
        return Optimization(self.cfg.optimizer, self.cfg.lr_scheduler)

    def configure_optimizers(self) -> Any:
        """Optimizer and schedule of the config, over the trainable parameters.

        Raises:
            ConfigError: No optimizer is configured, or nothing trains.
        """
        plan = self.optimization()
        if plan.optimizer is None:
            raise ConfigError(
                f'{plan.optimizer_path}: missing; training needs one, such as '
                '{_target_: torch.optim.AdamW, lr: 3e-4}.'
            )
        groups = group_parameters(
            self.named_parameters(), self.cfg.optim_param_groups, path='model.optim_param_groups'
        )
        optimizer = build_optimizer(plan.optimizer, groups, path=plan.optimizer_path)
        if plan.lr_scheduler is None:
            return {'optimizer': optimizer}
        schedule = build_scheduler(
            plan.lr_scheduler, optimizer, max_steps=self._planned_steps(), path=plan.lr_scheduler_path
        )
        return {'optimizer': optimizer, 'lr_scheduler': schedule}

    def _planned_steps(self) -> int | None:
        """Optimizer steps that the trainer will take, if that is known before the data is."""
        if self._trainer is None or self.trainer.max_steps < 1:
            return None
        return self.trainer.max_steps

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_resumable(self, checkpoint)

    # ---- .nemo archives -----------------------------------------------------------------------------------------

    def save_to(self, path: str | Path) -> None:
        """Write a `.nemo` archive."""
        write_nemo(path, self.nemo_config(), self.state_dict(), self.nemo_artifacts())

    @classmethod
    def restore_from(
        cls,
        restore_path: str | Path,
        *,
        map_location: Any = None,
        strict: bool = True,
        return_config: bool = False,
        override_config: Mapping[str, Any] | None = None,
    ) -> Any:
        """Load a `.nemo` archive, NeMo's or ours.

        Args:
            restore_path: File, or directory with the members.
            map_location: Device of the result; None: a GPU if there is one, else the CPU, as in NeMo.
            strict: Missing and unexpected weights are errors, not warnings.
            return_config: Give the archive's config instead of a model.
            override_config: Top-level keys that replace the archive's.

        Raises:
            ModelNotFoundError: No such file.
            ConfigError: There is no device `map_location`.
            CheckpointError: Damaged or unsafe; weights do not fit; or it holds a model that is no `cls`.
        """
        device = find_device(map_location)
        archive = read_nemo(restore_path)
        if override_config:
            archive = NemoArchive(archive.path, {**archive.config, **config_to_dict(override_config)}, archive.members)
        if return_config:
            return archive.config
        model = cls._class_in(archive).from_archive(archive)
        copy_weights(model, archive.state_dict, source=str(restore_path), strict=strict)
        return model.to(device).eval()

    @classmethod
    def from_archive(cls, archive: NemoArchive) -> 'ModelPT':
        """Build the model, without weights, that an archive describes."""
        return cls({key: value for key, value in archive.config.items() if key not in ('target', 'nemo_version')})

    def nemo_config(self) -> dict[str, Any]:
        """The config as an archive holds it: `target` in NeMo's name of the class where it has one."""
        own = f'{type(self).__module__}.{type(self).__qualname__}'
        # our public names are re-exports: `models.SALM` of a class that lives in `models.salm`
        public = (
            o
            for o in NEMO_TARGETS.values()
            if own.startswith(o.rpartition('.')[0]) and own.endswith(f'.{o.rpartition(".")[2]}')
        )
        target = next((to_nemo_target(o) for o in public), own)
        return {**config_to_dict(self.cfg), 'target': target}

    def nemo_artifacts(self) -> dict[str, Path | tuple[str, bytes]]:
        """Files that belong to the model: dotted config key -> a path, or a name and content."""
        return {}

    @classmethod
    def _class_in(cls, archive: NemoArchive) -> type['ModelPT']:
        if archive.target is None:
            return cls
        if archive.target == f'{cls.__module__}.{cls.__qualname__}':
            return cls  # a user's own class, which no allow-list needs to name
        try:
            found = resolve_target(archive.target, path=f'{archive.path}: target')
        except ConfigError as err:
            raise CheckpointError(str(err)) from err
        if not issubclass(found, cls):
            raise CheckpointError(
                f'{archive.path} holds a {found.__name__}, which is no {cls.__name__}; load it as {found.__name__}.'
            )
        return found

    # ---- Hugging Face directories -------------------------------------------------------------------------------

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write `config.json`, `model.safetensors` and what `save_extras` adds, over files of the same names."""
        from safetensors.torch import save_file

        directory = Path(save_directory)
        if directory.exists() and not directory.is_dir():
            raise CheckpointError(f'{directory} is a file; a model is saved as a directory, so name another place.')
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f'{directory} cannot be made ({error}); name another place.') from error
        text = json.dumps(self.hf_config(), indent=2, sort_keys=True, ensure_ascii=False)
        (directory / CONFIG_FILE).write_text(text + '\n', encoding='utf-8')
        save_file(_unshared(self.hf_state_dict()), directory / WEIGHTS_FILE, metadata={'format': 'pt'})
        self.save_extras(directory)

    @classmethod
    def from_pretrained(
        cls,
        model_id: str | Path,
        *,
        map_location: Any = 'cpu',
        strict: bool = True,
        revision: str | None = None,
        **kwargs: Any,
    ) -> 'ModelPT':
        """Load a directory that `save_pretrained` wrote, or one of the Hugging Face hub's.

        Args:
            model_id: Directory, or `owner/name` on the hub (the local cache is enough when it holds it).
            map_location: Device of the result; None: a GPU if there is one, else the CPU.
            strict: Missing and unexpected weights are errors, not warnings.
            revision: Branch, tag or commit on the hub.
            **kwargs: For `from_hf_directory`.

        Raises:
            ModelNotFoundError: Neither a directory nor known to the hub.
            ConfigError: There is no device `map_location`.
            CheckpointError: Incomplete, damaged, or weights that do not fit.
        """
        device = find_device(map_location)
        directory = find_directory(model_id, revision=revision)
        config = _read_json(directory / CONFIG_FILE)
        model = cls.from_hf_directory(directory, config, **kwargs)
        model.load_hf_state_dict(read_safetensors(directory), source=str(directory), strict=strict)
        return model.to(device).eval()

    def hf_config(self) -> dict[str, Any]:
        """What `config.json` holds."""
        return {'architectures': [type(self).__name__], **config_to_dict(self.cfg)}

    def hf_state_dict(self) -> Mapping[str, Tensor]:
        """Weights under the names they have on disk."""
        return self.state_dict()

    def load_hf_state_dict(self, weights: Mapping[str, Tensor], *, source: str, strict: bool = True) -> None:
        """Load weights under the names they have on disk."""
        copy_weights(self, weights, source=source, strict=strict)

    def save_extras(self, directory: Path) -> None:
        """Write what else makes the directory self-contained: tokenizer, backbone config."""

    @classmethod
    def from_hf_directory(cls, directory: Path, config: dict[str, Any], **kwargs: Any) -> 'ModelPT':
        """Build the model, without weights, that a directory describes."""
        known = {key: value for key, value in config.items() if key not in ('architectures', 'model_type')}
        return cls(build_config(cls.config_class, {**known, **kwargs}, source=str(directory / CONFIG_FILE)))


def _unshared(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor with storage of its own, as safetensors wants it."""
    seen: set[int] = set()
    result = {}
    for name, tensor in weights.items():
        tensor = tensor.detach().cpu().contiguous()
        result[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return result


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f'{path.parent}: no {path.name} in it, so it is no saved model.')
    try:
        return json.loads(path.read_text(encoding='utf-8'))
    except ValueError as err:
        raise CheckpointError(f'{path}: not valid JSON: {err}') from err


def read_safetensors(directory: Path) -> dict[str, Tensor]:
    """All weights of `model.safetensors`, or of the shards that its index names.

    Raises:
        CheckpointError: A file is missing, damaged, or outside the directory.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    index = directory / f'{WEIGHTS_FILE}.index.json'
    names = sorted(set(_read_json(index)['weight_map'].values())) if index.is_file() else [WEIGHTS_FILE]
    weights: dict[str, Tensor] = {}
    for name in names:
        if Path(name).name != name or not (directory / name).is_file():
            raise CheckpointError(f'{directory}: no {name} in it.')
        try:
            weights.update(load_file(directory / name))
        except SafetensorError as err:
            raise CheckpointError(f'{directory / name} is damaged ({err}); download or save it again.') from err
    return weights
