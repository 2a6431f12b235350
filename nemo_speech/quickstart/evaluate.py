"""Does the trained SALM hear? Transcripts and cross-entropy of clips it never saw, with controls on both sides.

Below: the same texts scored with another clip's audio; a model that only knew the language would find no difference.
Above: Whisper's own decoder on the same clips, which heard 680,000 hours before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_speech.quickstart.speech import Clip, PreparedSpeech
from nemo_speech.quickstart.transcripts import spoken_words

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from nemo_speech.collections.common.prompts import PromptFormatter
    from nemo_speech.collections.speechlm2 import SALM

NUM_BEAMS = 2  # on a part of the training clips: 42% WER, greedy 46%
BATCH_SIZE = 12
# An answer that runs on is cut where no speaker could have got to: the prompts hold about 4 tokens a second. Without
# it a barely trained model would spend minutes on repeating itself.
MAX_TOKENS_PER_S = 8.0
MAX_TRAINING_CLIPS = 96
MAX_LONG_SEGMENT_S = 8.0
# What was transcribed by whom; the order is that of the tables.
SYSTEMS = ('salm', 'ctc', 'whisper')
TITLES = {'salm': 'SALM', 'ctc': 'CTC head', 'whisper': 'Whisper'}


@dataclass
class ClipResult:
    """One clip: what was said, and what each system made of it (normalised as the reference is)."""

    id: str
    path: Path
    duration_s: float
    kind: str
    reference: str
    texts: dict[str, str] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    num_words: int = 0

    def rate(self, system: str) -> float:
        """Word errors of a system over reference words."""
        return self.errors[system] / max(self.num_words, 1)


@dataclass
class SetResult:
    """Results of a set of clips; `systems` are those that transcribed it."""

    name: str
    clips: list[ClipResult]

    @property
    def systems(self) -> list[str]:
        return [s for s in SYSTEMS if self.clips and all(s in clip.texts for clip in self.clips)]

    def wer(self, system: str, kind: str | None = None) -> float | None:
        """Word error rate over the whole set or over one kind of clip; None where there is nothing to score."""
        clips = [c for c in self.clips if kind is None or c.kind == kind]
        num_words = sum(clip.num_words for clip in clips)
        if system not in self.systems or not num_words:
            return None
        return sum(clip.errors[system] for clip in clips) / num_words

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `report.json`."""
        return {
            'num_clips': len(self.clips),
            'num_words': sum(clip.num_words for clip in self.clips),
            'wer': {system: self.wer(system) for system in self.systems},
            'wer_phrases': {system: self.wer(system, 'phrase') for system in self.systems},
            'clips': [
                {'id': c.id, 'kind': c.kind, 'duration_s': c.duration_s, 'reference': c.reference, **c.texts}
                for c in self.clips
            ],
        }


@dataclass(frozen=True)
class CrossEntropy:
    """Nats a token of the held-out texts, with their own audio and with another clip's."""

    true_audio: float
    other_audio: float
    num_tokens: int

    @property
    def gap(self) -> float:
        return self.other_audio - self.true_audio


@dataclass
class Evaluation:
    """All that was measured."""

    heldout: SetResult
    train: SetResult
    long: SetResult | None
    cross_entropy: CrossEntropy

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `report.json`."""
        return {
            'heldout': self.heldout.to_dict(),
            'train': self.train.to_dict(),
            'long': self.long.to_dict() if self.long else None,
            'cross_entropy': {
                'true_audio': self.cross_entropy.true_audio,
                'other_audio': self.cross_entropy.other_audio,
                'gap': self.cross_entropy.gap,
                'num_tokens': self.cross_entropy.num_tokens,
            },
        }


def evaluate(model_dir: Path, speech: PreparedSpeech, encoder_dir: Path) -> Evaluation:
    """Evaluate a trained SALM on held-out clips, on some training clips, and against Whisper.

    Args:
        model_dir: Directory that `SALM.save_pretrained` wrote.
        speech: What it was trained on and what was held out.
        encoder_dir: Whisper as a Hugging Face directory, decoder included.
    """
    from nemo_speech.collections.speechlm2 import SALM

    model = SALM.from_pretrained(model_dir, map_location=None)
    assert isinstance(model, SALM)
    model.eval()
    heldout = transcribe_clips(model, speech.heldout, 'held out', speech.language)
    train = transcribe_clips(model, some_clips(speech.train, MAX_TRAINING_CLIPS), 'training', speech.language)
    entropy = measure_cross_entropy(model, speech.heldout)
    long = transcribe_long(model, speech.long, speech.language) if speech.long else None
    del model
    add_whisper(heldout, encoder_dir, speech.language)
    return Evaluation(heldout, train, long, entropy)


def some_clips(clips: Sequence[Clip], num_clips: int) -> list[Clip]:
    """At most so many of the clips: always the same ones, chosen by hash."""
    return sorted(clips, key=lambda clip: sha256(clip.prompt.key.encode()).digest())[:num_clips]


def transcribe_clips(model: SALM, clips: Sequence[Clip], name: str, language: str) -> SetResult:
    """Transcripts of the SALM and, where the adapter has one, of its CTC head."""
    results = {}
    for batch in _batches(clips, f'Transcribing, {name}'):
        audios, audio_lens = _load(batch, model)
        limit = max_new_tokens(batch[0].duration_s)
        waveforms = [audio[:length] for audio, length in zip(audios, audio_lens)]
        texts = {
            'salm': model.transcribe(
                waveforms, batch_size=BATCH_SIZE, max_new_tokens=limit, num_beams=NUM_BEAMS, verbose=False
            )
        }
        heard = model.ctc_transcripts(audios, audio_lens)
        if heard is not None:
            texts['ctc'] = heard
        for i, clip in enumerate(batch):
            results[clip.prompt.key] = _result(clip, {system: found[i] for system, found in texts.items()}, language)
    result = SetResult(name, [results[clip.prompt.key] for clip in clips])
    for system in result.systems:
        score(result, system, language)
    return result


def max_new_tokens(duration_s: float) -> int:
    """Most tokens of the answer to a batch whose longest clip lasts so long."""
    return 8 + math.ceil(MAX_TOKENS_PER_S * duration_s)


def transcribe_long(model: SALM, clips: Sequence[Clip], language: str) -> SetResult:
    """Clips longer than any in training, through `transcribe`, which cuts them at pauses."""
    texts = model.transcribe(
        [clip.path for clip in clips],
        batch_size=BATCH_SIZE,
        max_new_tokens=max_new_tokens(MAX_LONG_SEGMENT_S),
        max_segment_s=MAX_LONG_SEGMENT_S,
        num_beams=NUM_BEAMS,
        verbose=False,
    )
    result = SetResult('held out, long', [_result(c, {'salm': t}, language) for c, t in zip(clips, texts)])
    score(result, 'salm', language)
    return result


def measure_cross_entropy(model: SALM, clips: Sequence[Clip]) -> CrossEntropy:
    """Teacher-forced cross-entropy of the texts, given their own audio and given the audio of `other_clips`."""
    partners = dict(zip((clip.prompt.key for clip in clips), other_clips(clips)))
    sums = {'true': 0.0, 'other': 0.0}
    num_tokens = 0
    for batch in _batches(clips, 'Cross-entropy'):
        for audio, sources in (('true', batch), ('other', [partners[clip.prompt.key] for clip in batch])):
            loss_sum, count = _loss(model, batch, sources)
            sums[audio] += loss_sum
        num_tokens += count
    return CrossEntropy(sums['true'] / num_tokens, sums['other'] / num_tokens, num_tokens)


def other_clips(clips: Sequence[Clip]) -> list[Clip]:
    """For each clip another one with a different text, of nearly its length: length alone must not give it away."""
    order = sorted(range(len(clips)), key=lambda i: (clips[i].num_samples, clips[i].prompt.key))
    partners: dict[int, Clip] = {}
    for place, i in enumerate(order):
        for step in range(1, len(order)):
            other = clips[order[(place + step) % len(order)]]
            if other.prompt.text != clips[i].prompt.text:
                partners[i] = other
                break
        else:
            raise ValueError(f'all clips say {clips[i].prompt.text!r}: there is no other audio to compare with')
    return [partners[i] for i in range(len(clips))]


def add_whisper(result: SetResult, encoder_dir: Path, language: str) -> None:
    """Add what Whisper's own decoder says; an English-only Whisper on another language adds nothing."""
    import soundfile
    import torch
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    whisper = WhisperForConditionalGeneration.from_pretrained(encoder_dir).eval()
    multilingual = whisper.generation_config.is_multilingual
    if not multilingual and language != 'en':
        return
    whisper.to('cuda' if torch.cuda.is_available() else 'cpu')
    processor = WhisperProcessor.from_pretrained(encoder_dir)
    options = {'language': language, 'task': 'transcribe'} if multilingual else {}
    for batch in _batches(result.clips, "Whisper's decoder"):
        samples = [soundfile.read(clip.path, dtype='float32')[0] for clip in batch]
        features = processor.feature_extractor(
            samples, sampling_rate=16000, return_tensors='pt', return_attention_mask=True
        )
        with torch.inference_mode():
            ids = whisper.generate(
                features.input_features.to(whisper.device),
                attention_mask=features.attention_mask.to(whisper.device),
                **options,
            )
        for clip, text in zip(batch, processor.batch_decode(ids, skip_special_tokens=True)):
            clip.texts['whisper'] = spoken_words(text, language)
    score(result, 'whisper', language)


def score(result: SetResult, system: str, language: str) -> None:
    """Count each clip's word errors; English numbers and contractions are folded as Whisper's scores fold them."""
    from nemo_speech.collections.common.metrics import score_texts

    scores = score_texts(
        [clip.reference for clip in result.clips],
        [clip.texts[system] for clip in result.clips],
        'english' if language == 'en' else 'basic',
    )
    for clip, errors in zip(result.clips, scores.utterance_errors):
        clip.errors[system], clip.num_words = errors.num_errors, errors.num_reference


def _result(clip: Clip, texts: dict[str, str], language: str) -> ClipResult:
    normal = {system: spoken_words(text, language) for system, text in texts.items()}
    prompt = clip.prompt
    return ClipResult(prompt.key, clip.path, clip.duration_s, prompt.kind, prompt.text, normal)


def _batches(items: Sequence[Any], title: str) -> Iterator[list[Any]]:
    """Batches of items of like duration, longest first, under a progress bar that counts seconds of audio."""
    from tqdm import tqdm

    ordered = sorted(items, key=lambda item: -item.duration_s)
    total = round(sum(item.duration_s for item in ordered), 1)
    with tqdm(total=total, desc=f'  {title}', unit='s', dynamic_ncols=True) as bar:
        for first in range(0, len(ordered), BATCH_SIZE):
            batch = ordered[first : first + BATCH_SIZE]
            yield batch
            bar.n = round(
                sum(item.duration_s for item in ordered[: first + len(batch)]), 1
            )  # sums of floats show dust
            bar.refresh()


def _load(clips: Sequence[Clip], model: SALM) -> tuple[torch.Tensor, torch.Tensor]:
    """Waveforms `[B, S]` and their lengths `[B]`, on the model's device."""
    from nemo_speech.collections.common.audio import load_audio
    from nemo_speech.collections.speechlm2.models.prompting import pad_waveforms

    audios, lens = pad_waveforms([load_audio(clip.path, model.sampling_rate) for clip in clips])
    return audios.to(model.device), lens.to(model.device)


def _dialog(model: SALM, answer: str | None = None) -> list[dict[str, str]]:
    turns = [{'role': 'user', 'content': f'{model.cfg.transcribe_prompt} {model.audio_locator_tag}'.strip()}]
    return turns if answer is None else [*turns, {'role': 'assistant', 'content': answer}]


def _text_mask(model: SALM, formatter: PromptFormatter, input_ids: Tensor) -> Tensor:
    """True for the tokens of a transcript and the end of text behind it, in the ids of its dialog."""
    import torch

    places = torch.arange(len(input_ids))
    start = len(formatter.encode_dialog(_dialog(model))['context_ids'])
    end = int((input_ids == model.text_eos_id).nonzero()[-1])
    return (places >= start) & (places <= end)


def _loss(model: SALM, clips: Sequence[Clip], sources: Sequence[Clip]) -> tuple[float, int]:
    """Summed loss of the texts of `clips`, end of text included, given the audio of `sources`, and their tokens.

    The role header and what follows the end of text are certain whatever was said, and are left out.
    """
    import torch

    from nemo_speech.collections.common.prompts import PromptFormatter
    from nemo_speech.collections.speechlm2.models.prompting import left_pad

    formatter = PromptFormatter.resolve(model.cfg.prompt_format)(model.tokenizer)
    encoded = [formatter.encode_dialog(_dialog(model, clip.prompt.text)) for clip in clips]
    input_ids, attention_mask = left_pad([item['input_ids'] for item in encoded], model.text_pad_id)
    loss_mask, _ = left_pad([_text_mask(model, formatter, item['input_ids']) for item in encoded], 0)
    audios, audio_lens = _load(sources, model)
    with torch.inference_mode():
        inputs = model.prepare_inputs(
            {
                'input_ids': input_ids.to(model.device),
                'attention_mask': attention_mask.to(model.device),
                'loss_mask': loss_mask.bool().to(model.device),
                'audios': audios,
                'audio_lens': audio_lens,
            }
        )
        out = model.llm.loss(inputs['input_embeds'], inputs['target_ids'])
    return float(out.loss_sum), int(out.num_tokens)
