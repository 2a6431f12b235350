"""Train a SALM.

    python examples/speechlm2/salm_train.py \
        model.pretrained_llm=<dir or hub id> model.pretrained_asr=<.nemo> \
        data.train_ds.input_cfg=<yaml> trainer.devices=1 trainer.max_steps=1000

Without a GPU add `trainer.accelerator=cpu trainer.precision=32`. `--help` lists the configuration.
"""

import lightning.pytorch as pl

from nemo_speech.collections.speechlm2 import SALM, DataModule, SALMDataset, SALMTrainConfig
from nemo_speech.core.config import hydra_runner
from nemo_speech.lightning.trainer import build_trainer
from nemo_speech.utils.exp_manager import exp_manager


@hydra_runner(config_path='../../conf/speechlm2', config_name='salm', schema=SALMTrainConfig)
def main(cfg: SALMTrainConfig) -> None:
    if cfg.seed is not None:
        pl.seed_everything(cfg.seed, verbose=False)
    trainer = build_trainer(cfg.trainer)
    log_dir = exp_manager(trainer, cfg.exp_manager, config=cfg)
    with trainer.init_module():
        model = SALM(cfg.model)
    dataset = SALMDataset(model.tokenizer, sample_rate=model.sampling_rate, on_audio_error=cfg.data.on_audio_error)
    datamodule = DataModule(cfg.data, tokenizer=model.tokenizer, dataset=dataset)
    trainer.fit(model, datamodule)
    if trainer.is_global_zero:
        model.save_pretrained(log_dir / 'hf')


if __name__ == '__main__':
    main()
