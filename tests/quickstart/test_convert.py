"""CTranslate2 Whisper and GGUF Llama become Hugging Face directories that load offline with the same weights."""

import json

import numpy as np
import pytest
import torch

from nemo_speech.core.errors import CheckpointError
from nemo_speech.quickstart.convert import llm_from_gguf, whisper_from_ctranslate2
from tests.quickstart.ct2 import whisper_variables, write_model

SPECIALS = ['<|endoftext|>', '<|startoftranscript|>', '<|notimestamps|>', '<|startofprev|>']


@pytest.fixture
def tiny_whisper(tmp_path):
    """A random Whisper of two layers, and it as a CTranslate2 directory."""
    from tokenizers import Tokenizer, models
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=40, d_model=16, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4, num_mel_bins=80,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=20, max_source_positions=50,
        max_target_positions=12, pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=1,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).half().float()  # values that float16 holds
    source = tmp_path / 'ct2'
    source.mkdir()
    write_model(
        source / 'model.bin', whisper_variables(model), {'decoder/projection/weight': 'decoder/embeddings/weight'}
    )
    (source / 'config.json').write_text(json.dumps({'suppress_ids': [3], 'suppress_ids_begin': [4]}))
    vocab = {token: i for i, token in enumerate([*SPECIALS, 'a', 'b'])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.save(str(source / 'tokenizer.json'))
    return model, source


def test_whisper_comes_back_whole(tiny_whisper, tmp_path):
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    model, source = tiny_whisper
    whisper_from_ctranslate2(source, tmp_path / 'hf')
    again = WhisperForConditionalGeneration.from_pretrained(tmp_path / 'hf')
    for name, value in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=0, atol=0)
    assert again.config.encoder_attention_heads == 4 and again.config.decoder_attention_heads == 2
    assert again.config.encoder_layers == 2 and again.config.decoder_layers == 1
    generation = again.generation_config
    assert (generation.decoder_start_token_id, generation.no_timestamps_token_id) == (1, 2)
    assert generation.suppress_tokens == [3] and generation.is_multilingual is False
    processor = WhisperProcessor.from_pretrained(tmp_path / 'hf')
    assert processor.feature_extractor.feature_size == 80 and processor.tokenizer.pad_token == '<|endoftext|>'


def test_whisper_refuses_other_models_quantised_and_missing_weights(tiny_whisper, tmp_path):
    model, source = tiny_whisper
    variables = whisper_variables(model)
    write_model(source / 'model.bin', variables, spec='TransformerSpec')
    with pytest.raises(CheckpointError, match='TransformerSpec; expected a WhisperSpec'):
        whisper_from_ctranslate2(source, tmp_path / 'hf')
    write_model(source / 'model.bin', variables | {'encoder/conv1/weight': np.zeros((16, 80, 3), np.int8)})
    with pytest.raises(CheckpointError, match='conv1/weight is quantised'):
        whisper_from_ctranslate2(source, tmp_path / 'hf')
    write_model(source / 'model.bin', {k: v for k, v in variables.items() if k != 'decoder/layer_norm/beta'})
    with pytest.raises(CheckpointError, match="lacks the variable 'decoder/layer_norm/beta'"):
        whisper_from_ctranslate2(source, tmp_path / 'hf')


def test_gguf_that_is_none_is_named(tmp_path):
    pytest.importorskip('gguf', reason='the quickstart extra is not installed')
    path = tmp_path / 'model.gguf'
    path.write_bytes(b'not a model')
    with pytest.raises(CheckpointError, match='model.gguf cannot be read as a GGUF'):
        llm_from_gguf(path, tmp_path / 'hf')
