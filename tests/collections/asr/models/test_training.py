"""Models made from training configurations: sizes, losses, vocabulary, fine-tuning, what is refused."""

import copy
from pathlib import Path

import pytest
import sentencepiece
import torch

import nemo_speech.collections.asr as nemo_asr
from nemo_speech.collections.asr.models.config import FinetuneModelConfig
from nemo_speech.collections.asr.models.training import nemo_optimization, zero_bad_gradients
from nemo_speech.core.config import build_config
from nemo_speech.core.errors import ConfigError, ModelNotFoundError
from tests.collections.asr.tiny import CLASSES, asr_config, make_tokenizer


@pytest.fixture(scope='module')
def tokenizer_dir(tmp_path_factory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp('tokenizer'), 40)


def make(kind: str, tokenizer_dir: Path, **keys):
    return getattr(nemo_asr.models, CLASSES[kind])(asr_config(kind, tokenizer_dir, **keys))


def batch(vocab_size: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return {
        'audios': torch.randn(2, 16000, generator=generator) * 0.1,
        'audio_lens': torch.tensor([16000, 12000]),
        'tokens': torch.randint(0, vocab_size, (2, 4), generator=generator),
        'token_lens': torch.tensor([4, 2]),
        'texts': ['a', 'b'],
        'ids': ['1', '2'],
    }


@pytest.mark.parametrize('kind', CLASSES)
def test_heads_take_their_sizes_from_tokenizer_and_encoder(kind, tokenizer_dir, tmp_path):
    model = make(kind, tokenizer_dir)
    size = model.tokenizer.vocab_size
    heads = [model.decoder] if kind == 'ctc' else [model.joint]
    heads += [model.ctc_decoder] if kind.startswith('hybrid') else []
    assert {head.num_classes_with_blank for head in heads} == {size + 1}
    model.save_to(tmp_path / 'm.nemo')
    again = nemo_asr.models.ASRModel.restore_from(tmp_path / 'm.nemo')
    assert type(again) is type(model) and again.tokenizer.vocab == model.tokenizer.vocab


@pytest.mark.parametrize('kind', CLASSES)
def test_every_parameter_learns_and_the_loss_falls(kind, tokenizer_dir):
    torch.manual_seed(0)
    model = make(kind, tokenizer_dir).train()
    data = batch(model.tokenizer.vocab_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        loss = model.training_step(data, 0)['loss']
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    without = [name for name, p in model.named_parameters() if p.grad is None]
    assert not without
    assert losses[-1] < 0.7 * losses[0], losses


def test_hybrid_loss_is_the_weighted_sum_of_both_heads(tokenizer_dir):
    model = make('hybrid', tokenizer_dir).eval()
    data = batch(model.tokenizer.vocab_size)
    encoded, lens = model.encode(data['audios'], data['audio_lens'])
    out = model.compute_loss(encoded, lens, data)
    torch.testing.assert_close(out['loss'], 0.7 * out['train_rnnt_loss'] + 0.3 * out['train_ctc_loss'])


@pytest.mark.parametrize('kind', CLASSES)
def test_new_vocabulary_makes_new_heads_and_keeps_the_encoder(kind, tokenizer_dir, tmp_path):
    """In NeMo a TDT's blank is then V + 5, so training goes wrong (its issue 14140)."""
    model = make(kind, tokenizer_dir)
    encoder = copy.deepcopy(model.encoder.state_dict())
    model.change_vocabulary(make_tokenizer(tmp_path / 'new', 30), 'bpe')
    size = model.tokenizer.vocab_size
    assert size != 40 and model.loss.blank == size
    assert all(torch.equal(v, encoder[k]) for k, v in model.encoder.state_dict().items())
    model.training_step(batch(size), 0)['loss'].backward()
    model.save_to(tmp_path / 'm.nemo')
    again = nemo_asr.models.ASRModel.restore_from(tmp_path / 'm.nemo')
    assert again.tokenizer.vocab == model.tokenizer.vocab


def test_finetuning_takes_data_optimizer_and_tokenizer_and_keeps_the_rest(tokenizer_dir, tmp_path):
    model = make('ctc', tokenizer_dir)
    head = model.decoder.decoder_layers[0].weight.clone()
    keys = {'train_ds': {'manifest_filepath': 'a.json', 'batch_size': 1}, 'optim': {'name': 'sgd', 'lr': 0.1}}
    model.prepare_finetuning(build_config(FinetuneModelConfig, keys))
    assert torch.equal(model.decoder.decoder_layers[0].weight, head) and model.training
    assert model.cfg.train_ds == keys['train_ds']
    assert type(model.configure_optimizers()['optimizer']).__name__ == 'SGD'
    change = {'update_tokenizer': True, 'dir': str(make_tokenizer(tmp_path, 30)), 'type': 'bpe'}
    model.prepare_finetuning(build_config(FinetuneModelConfig, {**keys, 'tokenizer': change}))
    assert model.decoder.decoder_layers[0].weight.shape[0] == model.tokenizer.vocab_size + 1


@pytest.mark.parametrize(
    ('section', 'message'),
    [
        ({'dir': '/nowhere', 'type': 'bpe'}, 'tokenizer.dir: no tokenizer.model in /nowhere'),
        ({'type': 'bpe'}, 'tokenizer.dir: missing'),
        ({'dir': '/nowhere', 'type': 'wpe'}, "tokenizer.type: 'wpe' is not supported"),
    ],
)
def test_missing_tokenizer_is_named_with_how_to_make_one(section, message, tokenizer_dir):
    with pytest.raises((ConfigError, ModelNotFoundError), match=message):
        make('ctc', tokenizer_dir, tokenizer=section)


def test_sizes_of_another_tokenizer_are_refused(tokenizer_dir):
    decoder = {'_target_': 'nemo.collections.asr.modules.ConvASRDecoder', 'num_classes': 1024}
    with pytest.raises(ConfigError, match='decoder.num_classes=1024, but the tokenizer has'):
        make('ctc', tokenizer_dir, decoder=decoder)


def test_optim_section_of_nemo_names_its_keys_in_errors(tokenizer_dir):
    plan = nemo_optimization({'name': 'adamw', 'lr': 1, 'sched': {'name': 'CosineAnnealing', 'min_lr': 0}})
    assert plan.optimizer == {'name': 'adamw', 'lr': 1}
    assert plan.lr_scheduler == {'name': 'CosineAnnealing', 'min_lr': 0}
    model = make('ctc', tokenizer_dir, optim={'name': 'adamv', 'lr': 1e-3})
    with pytest.raises(ConfigError, match="model.optim.name: 'adamv' is unknown. Did you mean 'adam"):
        model.configure_optimizers()


def test_step_with_bad_gradients_does_nothing():
    layer = torch.nn.Linear(2, 2)
    layer.weight.grad, layer.bias.grad = torch.full((2, 2), float('nan')), torch.ones(2)
    zero_bad_gradients(layer)
    assert not layer.weight.grad.any() and not layer.bias.grad.any()


def test_tokenizers_tell_what_they_do_not_know(tokenizer_dir):
    from nemo_speech.collections.common.tokenizers import CharTokenizer, SentencePieceTokenizer

    assert CharTokenizer('ab ').unknown_in('a cab') == ['c']
    tokenizer = SentencePieceTokenizer(tokenizer_dir / 'tokenizer.model')
    assert tokenizer.unknown_in('log in') == [] and '€' in tokenizer.unknown_in('log €')[-1]
    assert sentencepiece.SentencePieceProcessor(str(tokenizer_dir / 'tokenizer.model')).get_piece_size() == 40
