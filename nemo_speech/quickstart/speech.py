"""From gathered prompts to training data: WAV files, lhotse cuts, NeMo manifests, and a summary to print."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nemo_speech.core.errors import AudioError, DataError, MissingDependencyError
from nemo_speech.quickstart.transcripts import Prompt, is_heldout, is_not_speech, parse_transcripts

SAMPLE_RATE_HZ = 16000
HISTOGRAM_EDGES_S = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 30.0)
# Longer clips are few, hold many words each, and would take most of a step's time: training leaves them out, and the
# evaluation transcribes the held-out ones apart, cut at pauses.
MAX_CLIP_S = 8.0
TRAINING_SPEEDS = (1.0, 0.9, 1.1)  # three voices out of one: in trials 2 to 3 points of the CTC head's WER
NUM_SMOKE_TRAIN = 36
NUM_SMOKE_HELDOUT = 10
MAX_SMOKE_CLIP_S = 3.0


@dataclass(frozen=True)
class Clip:
    """A prompt with its decoded audio."""

    prompt: Prompt
    path: Path
    num_samples: int

    @property
    def duration_s(self) -> float:
        return self.num_samples / SAMPLE_RATE_HZ


@dataclass(frozen=True)
class PreparedSpeech:
    """Training data on disk: `{train,heldout,long}_cuts.jsonl.gz` and `{...}_manifest.jsonl` in `directory`.

    `long` holds held-out clips over `MAX_CLIP_S`; `train` and `heldout` are at most that long.
    """

    directory: Path
    language: str
    train: list[Clip]
    heldout: list[Clip]
    long: list[Clip]
    excluded: dict[str, int]

    @property
    def train_cuts(self) -> Path:
        return self.directory / 'train_cuts.jsonl.gz'

    @property
    def heldout_cuts(self) -> Path:
        return self.directory / 'heldout_cuts.jsonl.gz'


def prepare_speech(
    part: Path, language: str, cache_dir: Path, output_dir: Path, smoke: bool = False, tuning: bool = False
) -> PreparedSpeech:
    """Decode, pair with transcripts, split by text, and write cuts and manifests.

    Args:
        part: Directory that `gather(speech_part(language))` gave.
        language: Its language.
        cache_dir: Decoded audio is kept here, `PART-wav`.
        output_dir: Cuts and manifests go here.
        smoke: Take a few short clips whose held-out words all occur in training.
        tuning: Split the training clips again, by other hash bits, and leave the held-out ones alone: for choosing
            settings without looking at what the result is reported on.

    Raises:
        DataError: Too few clips are usable.
        AudioError: A clip cannot be decoded.
    """
    parsed = parse_transcripts((part / 'transcripts.txt').read_text(encoding='utf-8'), language)
    sounds = {p.relative_to(part / 'g722').with_suffix('').as_posix(): p for p in (part / 'g722').rglob('*.g722')}
    clips, excluded = pair_clips(parsed.prompts, decode_all(sounds, cache_dir / f'{part.name}-wav'))
    excluded = parsed.excluded + excluded
    train = [clip for clip in clips if not is_heldout(clip.prompt.text)]
    heldout = [clip for clip in clips if is_heldout(clip.prompt.text)]
    if tuning:
        heldout = [clip for clip in train if is_heldout(clip.prompt.text, salt='tuning ')]
        train = [clip for clip in train if not is_heldout(clip.prompt.text, salt='tuning ')]
    long = [clip for clip in heldout if clip.duration_s > MAX_CLIP_S]
    excluded[f'training clips longer than {MAX_CLIP_S:g} s'] += sum(clip.duration_s > MAX_CLIP_S for clip in train)
    train = [clip for clip in train if clip.duration_s <= MAX_CLIP_S]
    heldout = [clip for clip in heldout if clip.duration_s <= MAX_CLIP_S]
    if smoke:
        (train, heldout), long = select_smoke(train, heldout), []
    if not train or not heldout:
        raise DataError(f'{part}: {len(train)} training and {len(heldout)} held-out clips; both are needed.')
    prepared = PreparedSpeech(output_dir, language, train, heldout, long, dict(excluded))
    output_dir.mkdir(parents=True, exist_ok=True)
    for name, chosen in (('train', train), ('heldout', heldout), ('long', long)):
        speeds = TRAINING_SPEEDS if name == 'train' and not smoke else (1.0,)
        write_cuts(chosen, language, output_dir / f'{name}_cuts.jsonl.gz', speeds)
        write_manifest(chosen, language, output_dir / f'{name}_manifest.jsonl')
    return prepared


def pair_clips(prompts: Sequence[Prompt], decoded: dict[str, tuple[Path, int]]) -> tuple[list[Clip], Counter[str]]:
    """Join transcripts and audio by key; keys may differ in case (`digits/1F`, `letters/O`).

    Returns:
        The clips, in the transcripts' order, and what found no partner, counted by reason.
    """
    by_key = {key.casefold(): value for key, value in decoded.items()}
    excluded: Counter[str] = Counter()
    clips = []
    for prompt in prompts:
        path, num_samples = by_key.get(prompt.key.casefold(), (None, 0))
        if path is None:
            excluded['text without audio'] += 1
        elif num_samples == 0:
            excluded['empty audio'] += 1
        else:
            clips.append(Clip(prompt, path, num_samples))
    known = {prompt.key.casefold() for prompt in prompts}
    excluded['audio without text'] += sum(key not in known and not is_not_speech(key) for key in by_key)
    return clips, +excluded


def decode_all(sounds: dict[str, Path], directory: Path) -> dict[str, tuple[Path, int]]:
    """Decode g722 files to 16 kHz 16-bit WAV once.

    Args:
        sounds: Key to file.
        directory: Made in one rename when all are decoded; used as it is when it is there.

    Returns:
        Key to WAV file and its number of samples.
    """
    import soundfile
    from tqdm import tqdm

    index_file = directory / 'index.json'
    if not index_file.is_file():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f'.{directory.name}-', dir=directory.parent) as scratch:
            made = Path(scratch) / 'wav'
            index = {}
            for key, path in tqdm(sorted(sounds.items()), desc='  decoding g722', unit='clip', dynamic_ncols=True):
                samples = decode_g722(path)
                index[key] = len(samples)
                target = made / f'{key}.wav'
                target.parent.mkdir(parents=True, exist_ok=True)
                soundfile.write(target, samples, SAMPLE_RATE_HZ, subtype='PCM_16')
            (made / 'index.json').write_text(json.dumps(index), encoding='utf-8')
            if directory.exists():
                shutil.rmtree(directory)
            made.rename(directory)
    index = json.loads(index_file.read_text(encoding='utf-8'))
    return {key: (directory / f'{key}.wav', num_samples) for key, num_samples in index.items()}


def decode_g722(path: Path) -> np.ndarray:
    """Samples `[S]` int16 at 16 kHz of a headerless 64 kbit/s G.722 file; an empty file gives none.

    Raises:
        MissingDependencyError: PyAV is not installed.
        AudioError: It does not decode to 16 kHz mono.
    """
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError('Decoding G.722 needs PyAV: pip install "nemo_speech[quickstart]"') from error

    if path.stat().st_size == 0:
        return np.zeros(0, dtype=np.int16)
    try:
        with av.open(str(path), format='g722') as container:
            frames = list(container.decode(audio=0))
    except (av.FFmpegError, OSError, ValueError) as error:
        raise AudioError(
            f'{path} cannot be decoded as G.722 ({error}). Delete its cache directory and run again.'
        ) from error
    if any(frame.sample_rate != SAMPLE_RATE_HZ or frame.layout.nb_channels != 1 for frame in frames):
        raise AudioError(f'{path}: expected 16 kHz mono, got {frames[0].sample_rate} Hz, {frames[0].layout.name}.')
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]).astype(np.int16)


def select_smoke(train: Sequence[Clip], heldout: Sequence[Clip]) -> tuple[list[Clip], list[Clip]]:
    """A few short phrases: held-out ones whose words training has, and the training clips that share most with them.

    On so few clips nothing can be learnt about unseen words; on these a CTC head shows that it listens.
    """
    candidates = [clip for clip in train if clip.duration_s <= MAX_SMOKE_CLIP_S]
    counts = Counter(word for clip in candidates for word in set(clip.prompt.text.split()))
    phrases = [c for c in heldout if c.prompt.kind == 'phrase' and c.duration_s <= MAX_SMOKE_CLIP_S]
    phrases.sort(key=lambda clip: (-min(counts[word] for word in clip.prompt.text.split()), clip.prompt.key))
    chosen: list[Clip] = []
    for clip in phrases:
        if clip.prompt.text not in {c.prompt.text for c in chosen} and len(chosen) < NUM_SMOKE_HELDOUT:
            chosen.append(clip)
    wanted = Counter(word for clip in chosen for word in clip.prompt.text.split())
    covered: Counter[str] = Counter()
    picked: list[Clip] = []
    while candidates and len(picked) < NUM_SMOKE_TRAIN:
        # Words covered less often so far weigh more, per word of the clip.
        best = max(candidates, key=lambda clip: _gain(clip.prompt.text.split(), wanted, covered))
        candidates.remove(best)
        picked.append(best)
        covered.update(set(best.prompt.text.split()))
    return picked, chosen


def _gain(words: Sequence[str], wanted: Counter[str], covered: Counter[str]) -> float:
    return sum(1 / (1 + covered[word]) for word in set(words) if word in wanted) / len(words) ** 0.5


def write_cuts(clips: Sequence[Clip], language: str, path: Path, speeds: Sequence[float] = (1.0,)) -> None:
    """Write a lhotse CutSet, a cut for each clip and speed, with absolute paths; lhotse changes speed on loading."""
    from lhotse import AudioSource, CutSet, MonoCut, Recording, SupervisionSegment

    cuts: list[MonoCut] = []
    for clip in clips:
        name = cut_id(clip, language)
        source = AudioSource(type='file', channels=[0], source=str(clip.path.resolve()))
        recording = Recording(name, [source], SAMPLE_RATE_HZ, clip.num_samples, clip.duration_s)
        said = SupervisionSegment(name, name, 0.0, clip.duration_s, text=clip.prompt.text, language=language)
        custom = {'written': clip.prompt.written, 'kind': clip.prompt.kind}
        cut = MonoCut(name, 0.0, clip.duration_s, 0, [said], recording=recording, custom=custom)
        cuts.extend(cut if speed == 1.0 else cut.perturb_speed(speed) for speed in speeds)
    CutSet.from_cuts(cuts).to_file(path)


def write_manifest(clips: Sequence[Clip], language: str, path: Path) -> None:
    """Write a NeMo manifest, one JSON object a line."""
    with open(path, 'w', encoding='utf-8') as file:
        for clip in clips:
            item = {
                'audio_filepath': str(clip.path.resolve()),
                'duration': clip.duration_s,
                'text': clip.prompt.text,
                'lang': language,
                'id': cut_id(clip, language),
                'kind': clip.prompt.kind,
            }
            file.write(json.dumps(item, ensure_ascii=False) + '\n')


def cut_id(clip: Clip, language: str) -> str:
    """Name of a clip's cut: its key, with the language, fit for file names."""
    return f'{language}-{clip.prompt.key.replace("/", "-")}'


def duration_histogram(durations_s: Sequence[float]) -> list[tuple[str, int]]:
    """Counts of clips by duration: label such as `1-2 s` and count, the last bin open."""
    counts = np.histogram(durations_s, [*HISTOGRAM_EDGES_S, np.inf])[0]
    edges = [f'{edge:g}' for edge in HISTOGRAM_EDGES_S]
    labels = [f'{low}-{high} s' for low, high in zip(edges, edges[1:])] + [f'{edges[-1]}+ s']
    return [(label, int(count)) for label, count in zip(labels, counts)]


def print_summary(speech: PreparedSpeech, report: Callable[[str], None] = print) -> None:
    """Print clips, minutes, exclusions, and a histogram of durations."""
    groups = {'training': speech.train, 'held out': speech.heldout, f'held out, over {MAX_CLIP_S:g} s': speech.long}
    for name, clips in groups.items():
        if not clips:
            continue
        durations = [clip.duration_s for clip in clips]
        kinds = Counter(clip.prompt.kind for clip in clips)
        shown = ', '.join(f'{count} {kind}' for kind, count in kinds.most_common())
        report(
            f'  {name}: {len(clips)} clips, {sum(durations) / 60:.1f} min ({sum(durations) / 3600:.2f} h), '
            f'median {np.median(durations):.1f} s, longest {max(durations):.1f} s ({shown})'
        )
    for reason, count in sorted(speech.excluded.items()):
        report(f'  left out: {count} {reason}')
    histogram = duration_histogram([clip.duration_s for clip in [*speech.train, *speech.heldout, *speech.long]])
    top = max(count for _, count in histogram)
    for label, count in histogram:
        if count:
            report(f'  {label:>8} {count:4d} {"#" * round(40 * count / top)}')
