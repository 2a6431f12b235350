"""What transcription returns when more than the text is asked for."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Hypothesis:
    """One transcript; every field is plain Python, so `json.dumps(dataclasses.asdict(h))` works."""

    text: str
    y_sequence: list[int] = field(default_factory=list)
    """Token ids of the text."""
    score: float | None = None
    """Log-probability of the tokens, where the decoder knows it."""
    timestamp: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """`segment`, `word`, `char`: items with `start` and `end` in seconds and their text under the level's name."""
    length: float = 0.0
    """Seconds of audio."""
    error: str | None = None
    """Why there is no text: the audio could not be read, and the caller asked for that to be reported only."""
