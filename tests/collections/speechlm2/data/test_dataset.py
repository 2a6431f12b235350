"""SALMDataset: NeMo's batches, padding by masks, any audio, unreadable audio."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from lhotse import CutSet, Recording

from nemo_speech.collections.common.data.conversation import AudioTurn, NeMoMultimodalConversation, TextTurn
from nemo_speech.collections.common.data.cut_audio import load_mono
from nemo_speech.collections.common.data.recordings import unopened_cut
from nemo_speech.collections.common.prompts import PromptFormatter
from nemo_speech.collections.common.tokenizers import AutoTokenizer
from nemo_speech.collections.speechlm2.data.dataset import SALMDataset
from nemo_speech.core.errors import AudioError, ConfigError, DataError

TOKENIZERS = Path(__file__).parents[2] / 'common' / 'prompts' / 'tokenizers'
TAG = '<|audio|>'


@pytest.fixture(scope='module')
def tokenizer() -> AutoTokenizer:
    return AutoTokenizer(TOKENIZERS / 'bytelevel', additional_special_tokens=[TAG])


def write(path: Path, num_samples: int = 16000, rate: int = 16000, channels: int = 1, seed: int = 0):
    samples = np.random.default_rng(seed).uniform(-0.5, 0.5, (num_samples, channels)).astype(np.float32)
    soundfile.write(path, samples, rate, subtype='FLOAT')
    return Recording.from_file(path).to_cut()


def talk(tokenizer, name: str, *cuts, answer: str | None = 'yes', prompt_format: str = 'qwen'):
    turns = [TextTurn('Hear:', 'user'), *(AudioTurn(cut, 'user', TAG) for cut in cuts)]
    turns += [TextTurn(answer, 'assistant')] if answer is not None else []
    formatter = PromptFormatter.resolve(prompt_format)(tokenizer)
    return NeMoMultimodalConversation(name, turns, 0.08).apply_prompt_format(formatter)


@pytest.mark.parametrize('case', ['salm_llama', 'salm_qwen3'])
def test_batch_equals_nemo(reference_dir, case):
    expected = json.loads((reference_dir / case / 'expected.json').read_text())
    arrays = np.load(reference_dir / case / 'expected.npz')
    tag = '<|audioplaceholder|>'
    tokenizer = AutoTokenizer(reference_dir / case / 'llm', additional_special_tokens=[tag])
    formatter = PromptFormatter.resolve(expected['prompt_format'])(tokenizer)
    conversations = []
    for clip, text in zip(('activated.wav', 'agent-incorrect.wav'), expected['texts']):
        cut = Recording.from_file(reference_dir / 'audio' / clip).to_cut()
        turns = [
            TextTurn(expected['prompt'].removesuffix(f' {tag}'), 'user'),
            AudioTurn(cut, 'user', tag),
            TextTurn(text, 'assistant'),
        ]
        conversations.append(NeMoMultimodalConversation(clip, turns, 0.08).apply_prompt_format(formatter))
    batch = SALMDataset(tokenizer)[CutSet(conversations)]
    for key in ('audios', 'audio_lens', 'input_ids', 'loss_mask'):
        np.testing.assert_array_equal(batch[key].numpy(), arrays[key], err_msg=key)
        assert batch[key].numpy().dtype == arrays[key].dtype
    assert batch['attention_mask'].sum(dim=1).tolist() == [len(c.input_ids) for c in conversations]


def test_mixed_batch(tokenizer, tmp_path):
    a, b, c = (write(tmp_path / f'{n}.wav', n, seed=n) for n in (1000, 3000, 2000))
    conversations = [talk(tokenizer, '1', a), talk(tokenizer, 'text'), talk(tokenizer, '2', b, c, answer=None)]
    batch = SALMDataset(tokenizer)[conversations]
    assert batch['audios'].shape == (3, 3000) and batch['audio_lens'].tolist() == [1000, 3000, 2000]
    torch.testing.assert_close(batch['audios'][2, :2000], torch.from_numpy(c.load_audio()[0]), rtol=0, atol=0)
    assert not batch['audios'][0, 1000:].any()
    for row, conversation in enumerate(conversations):
        valid = batch['attention_mask'][row]
        assert batch['input_ids'][row, valid].equal(conversation.input_ids)
        assert valid.int().diff().ge(0).all()  # left padding
        mask = torch.zeros(len(conversation.input_ids), dtype=torch.bool)
        assert batch['loss_mask'][row, valid].equal(mask if conversation.mask is None else conversation.mask)
        assert not batch['loss_mask'][row, ~valid].any()
    assert batch['conversations'] == conversations and batch['num_dropped'] == 0


def test_text_only_batch(tokenizer):
    batch = SALMDataset(tokenizer)[[talk(tokenizer, 'a'), talk(tokenizer, 'b', answer='longer')]]
    assert batch['audios'].shape == (0, 0) and batch['audios'].dtype == torch.float32
    assert batch['audio_lens'].shape == (0,) and batch['audio_lens'].dtype == torch.int32
    assert batch['input_ids'].shape == batch['loss_mask'].shape == batch['attention_mask'].shape


def test_pad_equal_to_eos_keeps_the_eos_label():
    tokenizer = AutoTokenizer(TOKENIZERS / 'bytelevel', pad_token='</s>', additional_special_tokens=[TAG])
    short, long = (talk(tokenizer, text, answer=text, prompt_format='llama2') for text in ('a', 'a longer answer'))
    batch = SALMDataset(tokenizer)[[short, long]]
    eos = batch['input_ids'] == tokenizer.eos_id
    assert eos[0].sum() > 1  # padding looks like eos
    assert (eos & batch['loss_mask']).sum(dim=1).tolist() == [1, 1]
    assert (eos & batch['attention_mask']).sum(dim=1).tolist() == [1, 1]


@pytest.mark.parametrize('rate, num_samples', [(8000, 8000), (44100, 44100), (16000, 16000), (22050, 22050)])
def test_any_rate_is_resampled(tokenizer, tmp_path, rate, num_samples):
    cut = write(tmp_path / 'x.wav', num_samples, rate)
    batch = SALMDataset(tokenizer, sample_rate=16000)[[talk(tokenizer, 'a', cut)]]
    assert batch['audio_lens'].tolist() == [16000]


@pytest.mark.parametrize('selector', [None, 'average', 0, 2])
def test_channels_are_mixed_down_or_picked(tmp_path, selector):
    cut = write(tmp_path / 'x.wav', 500, channels=3)
    samples = torch.from_numpy(cut.load_audio())
    expected = samples[selector] if isinstance(selector, int) else samples.mean(dim=0)
    torch.testing.assert_close(load_mono(cut, 16000, selector), expected, rtol=0, atol=1e-7)


def test_absent_channel_is_an_error(tmp_path):
    with pytest.raises(AudioError, match='channel_selector=3.*x.wav has 2 channels'):
        load_mono(write(tmp_path / 'x.wav', 500, channels=2), 16000, 3)


def unreadable(tmp_path: Path, kind: str):
    path = tmp_path / f'{kind}.wav'
    cut = write(path)
    if kind == 'missing':
        path.unlink()
    elif kind == 'corrupt':
        path.write_bytes(b'not audio at all')
    elif kind == 'truncated':
        path.write_bytes(path.read_bytes()[:2000])
    else:
        soundfile.write(path, np.full(16000, np.nan, dtype=np.float32), 16000, subtype='FLOAT')
    return cut


@pytest.mark.parametrize('kind', ['missing', 'corrupt', 'truncated', 'not_finite'])
def test_unreadable_audio_raises_or_is_skipped(tokenizer, tmp_path, kind, caplog):
    good, bad = talk(tokenizer, 'good', write(tmp_path / 'good.wav')), talk(
        tokenizer, 'bad', unreadable(tmp_path, kind)
    )
    with pytest.raises(AudioError, match=f"'bad'.*{kind}.wav"):
        SALMDataset(tokenizer)[[good, bad]]
    dataset = SALMDataset(tokenizer, on_audio_error='skip')
    batch = dataset[[bad, good]]
    assert [c.id for c in batch['conversations']] == ['good'] and batch['audios'].shape[0] == 1
    assert batch['num_dropped'] == dataset.num_dropped == 1
    assert dataset[[bad]] is None and dataset.num_dropped == 2


def test_unreadable_recording_of_a_manifest_is_told_in_one_line(tokenizer, tmp_path):
    cut = unopened_cut(str(tmp_path / 'gone.wav'), cut_id='gone', duration=1.0)
    with pytest.raises(AudioError) as caught:
        SALMDataset(tokenizer)[[talk(tokenizer, 'bad', cut)]]
    assert 'gone.wav does not exist' in str(caught.value) and '\n' not in str(caught.value)


def test_dropped_conversations_are_reported(tokenizer, tmp_path, caplog):
    bad = unreadable(tmp_path, 'missing')
    dataset = SALMDataset(tokenizer, on_audio_error='skip')
    assert dataset[[talk(tokenizer, f'bad{n}', bad) for n in range(15)]] is None
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 7  # five, ten together, and the whole batch
    assert "'bad0'" in messages[0] and 'missing.wav does not exist' in messages[0]
    assert 'dropped 15 conversations' in messages[5] and 'bad5, bad6' in messages[5] and 'bad14' in messages[5]
    assert 'all 15 conversations' in messages[6]


def test_audio_in_memory_is_not_carried_on(tokenizer, tmp_path):
    cut = write(tmp_path / 'x.wav').move_to_memory()
    batch = SALMDataset(tokenizer)[[talk(tokenizer, 'a', cut)]]
    assert batch['audio_lens'].tolist() == [16000]
    assert not batch['conversations'][0].list_cuts()[0].is_in_memory
    assert cut.is_in_memory


def test_wrong_items_are_errors(tokenizer, tmp_path):
    dataset = SALMDataset(tokenizer)
    with pytest.raises(DataError, match='MonoCut.*lhotse_as_conversation'):
        dataset[[write(tmp_path / 'x.wav')]]
    with pytest.raises(DataError, match="'a' has no token ids.*prompt_format"):
        dataset[[NeMoMultimodalConversation('a', [TextTurn('x', 'user')])]]
    with pytest.raises(DataError, match='no conversations'):
        dataset[[]]


@pytest.mark.parametrize(
    'options', [{'on_audio_error': 'ignore'}, {'channel_selector': 'left'}], ids=['policy', 'channel']
)
def test_wrong_options_are_errors(tokenizer, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        SALMDataset(tokenizer, **options)


def test_tokenizer_without_pad_is_an_error():
    tokenizer = AutoTokenizer(TOKENIZERS / 'bytelevel')
    tokenizer.tokenizer.pad_token = tokenizer.tokenizer.unk_token = None
    with pytest.raises(ConfigError, match='bytelevel.*pad'):
        SALMDataset(tokenizer)
    assert SALMDataset(tokenizer, pad_id=2).pad_id == 2


def test_dataset_works_in_a_worker(tokenizer, tmp_path):
    batch = [talk(tokenizer, 'a', write(tmp_path / 'x.wav'))]
    loader = torch.utils.data.DataLoader(SALMDataset(tokenizer), sampler=[batch], batch_size=None, num_workers=1)
    assert next(iter(loader))['audio_lens'].tolist() == [16000]
