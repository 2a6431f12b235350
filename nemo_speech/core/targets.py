"""NeMo's dotted class names and ours for the same thing: strings only, so that importing this table costs nothing.

A NeMo name that is not here is an error that names it (`core.instantiate`).
"""

_ASR = 'nemo.collections.asr.modules'
_PERCEPTION = 'nemo.collections.speechlm2.modules.perception'
_LOSSES = 'nemo.collections.common.losses'
_OUR_LOSSES = 'nemo_speech.collections.asr.losses.smoothed_cross_entropy'
_OUR_ASR = 'nemo_speech.collections.asr.modules'
_OUR_SPEECHLM2 = 'nemo_speech.collections.speechlm2.modules'
_SCHEDULERS = (
    'WarmupPolicy',
    'SquareRootConstantPolicy',
    'WarmupHoldPolicy',
    'WarmupHoldAnnealOneMinusSquareRoot',
    'WarmupHoldAnnealLinear',
    'WarmupAnnealHoldPolicy',
    'SquareAnnealing',
    'SquareRootAnnealing',
    'CosineAnnealing',
    'NoamAnnealing',
    'NoamHoldAnnealing',
    'WarmupAnnealing',
    'InverseSquareRootAnnealing',
    'T5InverseSquareRootAnnealing',
    'PolynomialDecayAnnealing',
    'PolynomialHoldDecayAnnealing',
)
_ADAPTERS = ('IdentityConnector', 'MultiLayerProjectionConnector', 'QformerConnector')

# NeMo's module and our class's name; the class is also known as `nemo.collections.asr.models.<class>`.
_ASR_MODELS = {
    'EncDecCTCModel': 'ctc_models',
    'EncDecCTCModelBPE': 'ctc_bpe_models',
    'EncDecRNNTModel': 'rnnt_models',
    'EncDecRNNTBPEModel': 'rnnt_bpe_models',
    'EncDecHybridRNNTCTCModel': 'hybrid_rnnt_ctc_models',
    'EncDecHybridRNNTCTCBPEModel': 'hybrid_rnnt_ctc_bpe_models',
    'EncDecMultiTaskModel': 'aed_multitask_models',
}

# NeMo dotted name -> ours. The first NeMo name of a class is the one written into files for NeMo.
NEMO_TARGETS: dict[str, str] = {
    f'{_ASR}.AudioToMelSpectrogramPreprocessor': f'{_OUR_ASR}.AudioToMelSpectrogramPreprocessor',
    f'{_ASR}.audio_preprocessing.AudioToMelSpectrogramPreprocessor': f'{_OUR_ASR}.AudioToMelSpectrogramPreprocessor',
    f'{_ASR}.SpectrogramAugmentation': f'{_OUR_ASR}.SpectrogramAugmentation',
    f'{_ASR}.audio_preprocessing.SpectrogramAugmentation': f'{_OUR_ASR}.SpectrogramAugmentation',
    f'{_ASR}.ConformerEncoder': f'{_OUR_ASR}.ConformerEncoder',
    f'{_ASR}.conformer_encoder.ConformerEncoder': f'{_OUR_ASR}.ConformerEncoder',
    f'{_ASR}.ConvASRDecoder': f'{_OUR_ASR}.ConvASRDecoder',
    f'{_ASR}.RNNTDecoder': f'{_OUR_ASR}.RNNTDecoder',
    f'{_ASR}.RNNTJoint': f'{_OUR_ASR}.RNNTJoint',
    f'{_ASR}.transformer.get_nemo_transformer': f'{_OUR_ASR}.TransformerDecoderNM',
    'nemo.collections.asr.parts.submodules.token_classifier.TokenClassifier': f'{_OUR_ASR}.TokenClassifier',
    f'{_LOSSES}.smoothed_cross_entropy.SmoothedCrossEntropyLoss': f'{_OUR_LOSSES}.SmoothedCrossEntropyLoss',
    f'{_LOSSES}.SmoothedCrossEntropyLoss': f'{_OUR_LOSSES}.SmoothedCrossEntropyLoss',
    **{
        f'nemo.collections.asr.models.{home}{name}': f'nemo_speech.collections.asr.models.{name}'
        for name, module in _ASR_MODELS.items()
        for home in (f'{module}.', '')
    },
    f'{_PERCEPTION}.AudioPerceptionModule': f'{_OUR_SPEECHLM2}.AudioPerceptionModule',
    'nemo.collections.speechlm2.modules.AudioPerceptionModule': f'{_OUR_SPEECHLM2}.AudioPerceptionModule',
    **{f'{_PERCEPTION}.{name}': f'{_OUR_SPEECHLM2}.{name}' for name in _ADAPTERS},
    'nemo.collections.speechlm2.models.SALM': 'nemo_speech.collections.speechlm2.models.SALM',
    'nemo.collections.speechlm2.models.salm.SALM': 'nemo_speech.collections.speechlm2.models.SALM',
    **{f'nemo.core.optim.lr_scheduler.{name}': f'nemo_speech.core.schedulers.{name}' for name in _SCHEDULERS},
    'nemo.core.optim.novograd.Novograd': 'nemo_speech.core.optim.Novograd',
    'nemo.core.optim.adan.Adan': 'nemo_speech.core.optim.Adan',
}

# Classes of NeMo 1.x and 2.x that NeMo 3.0 dropped: archives that name them exist, so the message should say why they
# fail.
REMOVED_NEMO_CLASSES = frozenset(
    {
        'SqueezeformerEncoder',
        'EncDecDiarLabelModel',
        'NeuralDiarizer',
        'SLUIntentSlotBPEModel',
        'ASRWithTTSModel',
        'LatticeLoss',
        'VitsModel',
        'Tacotron2Model',
        'WaveGlowModel',
        'RadTTSModel',
        'MixerTTSModel',
        'UnivNetModel',
        'SpectrogramEnhancerModel',
        'TwoStagesModel',
        'TalkNetSpectModel',
    }
)
REMOVED_NEMO_PREFIXES = (
    'nemo.collections.nlp.',
    'nemo.collections.llm.',
    'nemo.collections.vlm.',
    'nemo.collections.multimodal.',
    'nemo.collections.vision.',
    'nemo.export.',
    'nemo.deploy.',
)


def to_nemo_target(ours: str) -> str:
    """NeMo's name for a class of ours, as written into files that NeMo should read.

    Raises:
        LookupError: NeMo has no such class.
    """
    for theirs, own in NEMO_TARGETS.items():
        if own == ours:
            return theirs
    raise LookupError(f"'{ours}' has no counterpart in NeMo.")
