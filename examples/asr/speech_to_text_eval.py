"""Word error rate of an ASR model on a manifest.

    python examples/asr/speech_to_text_eval.py model_path=<.nemo> dataset_manifest=<json>

Writes one JSON line an utterance, worst first. `--help` lists the configuration.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nemo_speech.core.config import hydra_runner


@dataclass
class EvaluationConfig:
    """`model_path` or `pretrained_name`; `dataset_manifest` is a NeMo manifest or lhotse cuts, with texts."""

    dataset_manifest: str
    model_path: str | None = None
    pretrained_name: str | None = None
    output_filename: str = 'evaluation.jsonl'
    batch_size: int = 32
    use_normalizer: Literal['english', 'basic', 'none'] = 'none'
    decoder_type: Literal['rnnt', 'ctc'] | None = None
    """Of a hybrid model."""
    tolerance: float | None = None
    """A word error rate above it is an error: the exit code is 1."""
    device: str | None = None
    verbose: bool = True


@hydra_runner(config_path='../../conf/asr', config_name='speech_to_text_eval', schema=EvaluationConfig)
def main(cfg: EvaluationConfig) -> None:
    from nemo_speech.collections.asr.evaluation import evaluate, load_model
    from nemo_speech.utils.jsonl import write_jsonl

    model = load_model(cfg.model_path, cfg.pretrained_name, cfg.device, cfg.decoder_type)
    result = evaluate(
        model, cfg.dataset_manifest, batch_size=cfg.batch_size, normalizer=cfg.use_normalizer, verbose=cfg.verbose
    )
    write_jsonl(Path(cfg.output_filename), result.worst_first())
    print(result.summary())
    print(f'Utterances, worst first: {cfg.output_filename}')
    if cfg.tolerance is not None and result.scores.wer > cfg.tolerance:
        raise SystemExit(f'WER {result.scores.wer:.2%} is above tolerance={cfg.tolerance:.2%}.')


if __name__ == '__main__':
    main()
