"""What a CTC head says for each unit of new speech, kept, so that its output can be made up for any text.

An LLM that is to correct a CTC head must see its mistakes, and minutes of speech show few. Here the posteriors that
held-out clips got are cut up by aligning them with what was said; for a text, one such outcome is drawn for each unit:
often right, sometimes another unit, two, or none. So plain text, without audio, trains the LLM to read noisy spelling.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class PosteriorBank(nn.Module):
    """A ring of the last `capacity` outcomes: the posteriors `[n, V]` (n from 0 to 2) that one unit of a text got.

    The buffers are saved with a training checkpoint, so that a resumed run draws what an uninterrupted one would.
    """

    max_vectors = 2  # posteriors kept of an outcome; longer ones are rare and cut

    def __init__(self, capacity: int, num_units: int = 0) -> None:
        super().__init__()
        self.capacity = capacity
        self.vectors: Tensor
        self.num_vectors: Tensor
        self.units: Tensor
        self.is_right: Tensor
        self.num_added: Tensor
        self.register_buffer('vectors', torch.zeros(capacity, self.max_vectors, num_units, dtype=torch.float16))
        self.register_buffer('num_vectors', torch.zeros(capacity, dtype=torch.long))
        self.register_buffer('units', torch.zeros(capacity, dtype=torch.long))  # 0: the place is empty
        self.register_buffer('is_right', torch.zeros(capacity, dtype=torch.bool))
        self.register_buffer('num_added', torch.zeros((), dtype=torch.long))

    def set_num_units(self, num_units: int) -> None:
        """Empty the bank and fit it to so many units."""
        device = self.vectors.device
        self.vectors = torch.zeros(self.capacity, self.max_vectors, num_units, dtype=torch.float16, device=device)
        for buffer in (self.num_vectors, self.units, self.is_right, self.num_added):
            buffer.zero_()

    @torch.no_grad()
    def add(self, classes: Sequence[int], posteriors: Tensor) -> None:
        """Keep what one clip got: its true classes (1 to V) and the posteriors `[n, V]` of its segments."""
        heard = (posteriors.argmax(-1) + 1).tolist() if len(posteriors) else []
        for number, places in zip(classes, align_to_reference(classes, heard)):
            slot = int(self.num_added) % self.capacity
            self.num_added += 1
            places = places[: self.max_vectors]
            self.units[slot] = number
            self.num_vectors[slot] = len(places)
            self.is_right[slot] = len(places) == 1 and heard[places[0]] == number
            if places:
                self.vectors[slot, : len(places)] = posteriors[places].to(self.vectors.dtype)

    @torch.no_grad()
    def simulate(self, classes: Sequence[int], noise: float | None = None) -> Tensor:
        """Posteriors `[n, V]`, n at least 1, as the head might give for a text of these classes.

        Args:
            classes: The units of the text, 1 to V.
            noise: Each unit's own error rate is multiplied by it. `None`: some clips are hard and some easy, so a
                level is drawn for the text, about 1 and at most 3. Random numbers come from torch's CPU generator.
        """
        num_units = self.vectors.shape[-1]
        if noise is None:
            noise = min(3.0, float(torch.empty(()).exponential_()))
        wrong = ~self.is_right & (self.units > 0)
        drawn = []
        for number in classes:
            own = self.units == number
            right_slots = (own & self.is_right).nonzero()[:, 0]
            wrong_slots = (own & wrong).nonzero()[:, 0]
            rate = (len(wrong_slots) + 0.5) / (len(wrong_slots) + len(right_slots) + 2)
            slots = right_slots
            if float(torch.rand(())) < noise * rate:
                slots = wrong_slots if len(wrong_slots) else wrong.nonzero()[:, 0]
            if len(slots):
                slot = slots[int(torch.randint(len(slots), ()))]
                drawn.append(self.vectors[slot, : int(self.num_vectors[slot])].float())
            else:
                drawn.append(self._certain(number))
        if not any(len(vectors) for vectors in drawn):
            drawn.append(
                self._certain(classes[0]) if classes else self._certain(1).new_full((1, num_units), 1 / num_units)
            )
        return torch.cat(drawn)

    def _certain(self, number: int) -> Tensor:
        vector = torch.zeros(1, self.vectors.shape[-1], device=self.vectors.device)
        vector[0, number - 1] = 1.0
        return vector


def align_to_reference(reference: Sequence[int], heard: Sequence[int]) -> list[list[int]]:
    """For each reference unit, the places in `heard` that stand for it in a cheapest edit of one into the other.

    A unit that was left out has none; one that something was inserted after has that place as well (insertions before
    the first unit are the first's).
    """
    num_ref, num_heard = len(reference), len(heard)
    cost = [[0] * (num_heard + 1) for _ in range(num_ref + 1)]
    for i in range(num_ref + 1):
        for j in range(num_heard + 1):
            if i == 0 or j == 0:
                cost[i][j] = i + j
                continue
            swap = cost[i - 1][j - 1] + (reference[i - 1] != heard[j - 1])
            cost[i][j] = min(swap, cost[i - 1][j] + 1, cost[i][j - 1] + 1)
    places: list[list[int]] = [[] for _ in reference]
    i, j = num_ref, num_heard
    while i > 0 or j > 0:
        if i and j and cost[i][j] == cost[i - 1][j - 1] + (reference[i - 1] != heard[j - 1]):
            i, j = i - 1, j - 1
            places[i].insert(0, j)
        elif i and cost[i][j] == cost[i - 1][j] + 1:
            i -= 1
        else:
            j -= 1
            if places:
                places[max(0, i - 1)].insert(0, j)
    return places
