"""Train a FastConformer with a Transformer decoder that answers Canary prompts.

    python examples/asr/speech_to_text_aed.py encoder=tiny \
        model.tokenizer.langs.spl_tokens.dir=<dir> model.tokenizer.langs.en.dir=<dir> \
        model.train_ds.manifest_filepath=<json> model.validation_ds.manifest_filepath=<json> trainer.max_steps=1000

`--help` lists the configuration.
"""

import lightning.pytorch as pl

import nemo_speech.collections.asr as nemo_asr
from nemo_speech.collections.asr.experiment import MultiTaskTrainConfig, train
from nemo_speech.core.config import hydra_runner
from nemo_speech.lightning.trainer import build_trainer
from nemo_speech.utils.exp_manager import exp_manager


@hydra_runner(config_path='../../conf/asr', config_name='canary_aed', schema=MultiTaskTrainConfig)
def main(cfg: MultiTaskTrainConfig) -> None:
    if cfg.seed is not None:
        pl.seed_everything(cfg.seed, verbose=False)
    trainer = build_trainer(cfg.trainer)
    log_dir = exp_manager(trainer, cfg.exp_manager, config=cfg)
    model = nemo_asr.models.EncDecMultiTaskModel(cfg.model)
    train(trainer, model, log_dir, cfg.on_audio_error)


if __name__ == '__main__':
    main()
