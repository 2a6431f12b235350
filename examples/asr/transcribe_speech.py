"""Transcribe files, a folder or a manifest.

    python examples/asr/transcribe_speech.py model_path=<.nemo> audio_dir=<folder or file>
    python examples/asr/transcribe_speech.py pretrained_name=<hub id> dataset_manifest=<json> timestamps=true

Writes one JSON line an input. `--help` lists the configuration.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import nemo_speech.collections.asr as nemo_asr
from nemo_speech.core.config import hydra_runner
from nemo_speech.core.errors import ConfigError


@dataclass
class TranscriptionConfig:
    """`model_path` or `pretrained_name`, and `audio_dir` or `dataset_manifest`; keys are NeMo's."""

    model_path: str | None = None
    pretrained_name: str | None = None
    audio_dir: str | None = None
    """A file, or a folder whose files of `audio_type` are transcribed, those of its folders too."""
    dataset_manifest: str | None = None
    """NeMo manifest or lhotse cuts."""
    audio_type: str = 'wav'
    output_filename: str = 'transcripts.jsonl'
    batch_size: int = 32
    timestamps: bool = False
    decoder_type: Literal['rnnt', 'ctc'] | None = None
    """Of a hybrid model."""
    on_audio_error: Literal['raise', 'skip'] = 'raise'
    device: str | None = None
    verbose: bool = True


def find_audio(cfg: TranscriptionConfig) -> Path | list[Path]:
    """What is to be transcribed.

    Raises:
        ConfigError: Nothing is named, two things are, or there is nothing.
    """
    if (cfg.audio_dir is None) == (cfg.dataset_manifest is None):
        raise ConfigError('audio_dir, dataset_manifest: give one of the two.')
    if cfg.dataset_manifest is not None:
        return Path(cfg.dataset_manifest)
    path = Path(cfg.audio_dir or '')
    if not path.is_dir():
        return path
    found = sorted(path.rglob(f'*.{cfg.audio_type}'))
    if not found:
        raise ConfigError(f'audio_dir: no *.{cfg.audio_type} in {path}; set audio_type to what is there.')
    return found


@hydra_runner(config_path='../../conf/asr', config_name='transcribe_speech', schema=TranscriptionConfig)
def main(cfg: TranscriptionConfig) -> None:
    from nemo_speech.collections.asr.evaluation import load_model, transcript_rows
    from nemo_speech.collections.common.audio_inputs import list_sources
    from nemo_speech.utils.jsonl import write_jsonl

    sources = list(list_sources(find_audio(cfg)))  # before the model: a wrong path should not wait for it
    model: nemo_asr.models.ASRModel = load_model(cfg.model_path, cfg.pretrained_name, cfg.device, cfg.decoder_type)
    hypotheses = model.transcribe(
        sources,
        batch_size=cfg.batch_size,
        timestamps=cfg.timestamps,
        on_audio_error=cfg.on_audio_error,
        verbose=cfg.verbose,
    )
    write_jsonl(Path(cfg.output_filename), transcript_rows(sources, hypotheses))
    print(f'{len(hypotheses)} transcripts: {cfg.output_filename}')


if __name__ == '__main__':
    main()
