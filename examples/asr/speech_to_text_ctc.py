"""Train a FastConformer with a CTC head.

    python examples/asr/speech_to_text_ctc.py encoder=tiny model.tokenizer.dir=<dir> \
        model.train_ds.manifest_filepath=<json> model.validation_ds.manifest_filepath=<json> trainer.max_steps=1000

`--help` lists the configuration.
"""

import lightning.pytorch as pl

import nemo_speech.collections.asr as nemo_asr
from nemo_speech.collections.asr.experiment import ASRTrainConfig, train
from nemo_speech.core.config import hydra_runner
from nemo_speech.lightning.trainer import build_trainer
from nemo_speech.utils.exp_manager import exp_manager


@hydra_runner(config_path='../../conf/asr', config_name='fastconformer_ctc', schema=ASRTrainConfig)
def main(cfg: ASRTrainConfig) -> None:
    if cfg.seed is not None:
        pl.seed_everything(cfg.seed, verbose=False)
    trainer = build_trainer(cfg.trainer)
    log_dir = exp_manager(trainer, cfg.exp_manager, config=cfg)
    model = nemo_asr.models.EncDecCTCModelBPE(cfg.model)
    train(trainer, model, log_dir, cfg.on_audio_error)


if __name__ == '__main__':
    main()
