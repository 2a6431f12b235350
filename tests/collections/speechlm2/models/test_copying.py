"""Rows of shuffled words, heard from the adapter's bank, are added to training batches."""

import pytest
import torch
from lhotse import CutSet

from nemo_speech.collections.common.data.conversation import AudioTurn, NeMoMultimodalConversation, TextTurn
from nemo_speech.collections.common.prompts import PromptFormatter
from nemo_speech.collections.speechlm2 import SALM, SALMDataset
from nemo_speech.collections.speechlm2.models.copying import add_copying_rows, shuffled_texts
from tests.tiny import salm_config


@pytest.fixture(scope='module')
def model(tiny_llm) -> SALM:
    torch.manual_seed(0)
    adapter = {
        '_target_': 'nemo_speech.collections.speechlm2.modules.CTCGuidedAdapter',
        'input_dim': 16,
        'output_dim': 32,
        'stack': 1,
        'frames_per_s': 12.5,
        'cross_fit_folds': 2,
        'bank_size': 256,
    }
    config = salm_config(tiny_llm, prompt_format='qwen', ctc={'copy_rows': 3, 'weight': 0.3})
    config['perception']['modality_adapter'] = adapter
    return SALM(config).train()


@pytest.fixture
def batch(model, tiny_cuts):
    formatter = PromptFormatter.resolve('qwen')(model.tokenizer)
    conversations = []
    for cut in list(CutSet.from_file(tiny_cuts))[:4]:
        text = cut.supervisions[0].text
        turns = [AudioTurn(cut, 'user', model.audio_locator_tag, text), TextTurn(text, 'assistant')]
        conversations.append(NeMoMultimodalConversation(cut.id, turns, 0.08).apply_prompt_format(formatter))
    return SALMDataset(model.tokenizer)[conversations]


def test_shuffled_texts_use_only_words_of_the_transcripts():
    torch.manual_seed(1)
    texts = shuffled_texts(['one two', 'three'], 20)
    assert {word for text in texts for word in text.split()} <= {'one', 'two', 'three'}
    assert {len(text.split()) for text in texts} <= {1, 2}


def test_rows_are_added_with_as_many_audios_as_tags(model, batch):
    audio = model.encode_audio(batch['audios'], batch['audio_lens'], ['a'] * 4)
    fields, more = add_copying_rows(model, batch, audio, 3)
    assert fields['input_ids'].shape[0] == 7 and len(more.lens) == 7
    tags = (fields['input_ids'] == model.audio_locator_tag_id) & fields['attention_mask']
    assert tags.sum(dim=1).tolist() == [1] * 7
    text = model.tokenizer.ids_to_text(fields['input_ids'][4][fields['loss_mask'][4]].tolist())
    assert set(text.replace('assistant', '').split()) <= {
        w for c in batch['conversations'] for w in c.turns[-1].value.split()
    }


def test_training_step_counts_their_labels(model, batch):
    plain = int(batch['loss_mask'].sum())
    inputs = model._prepare(batch, with_transcripts=True)
    assert int((inputs.batch.target_ids != -100).sum()) > plain
    loss = model.training_step(batch, 0)['loss']
    loss.backward()
    assert torch.isfinite(loss)


def test_batches_of_another_form_are_left_alone(model, batch):
    batch['conversations'][0].turns[-1].value = 'an answer, not a transcript'
    audio = model.encode_audio(batch['audios'], batch['audio_lens'], ['a'] * 4)
    fields, same = add_copying_rows(model, batch, audio, 3)
    assert fields['input_ids'] is batch['input_ids'] and same is audio
