"""Freezing by regular expressions on parameter names, with nothing passed over in silence."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import nn

from nemo_speech.core.errors import ConfigError


@dataclass
class FreezeReport:
    """What `freeze_by_patterns` did; names are each parameter's first."""

    frozen: list[str] = field(default_factory=list)
    trainable: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)  # patterns that match no parameter
    num_frozen: int = 0  # elements
    num_trainable: int = 0

    def __str__(self) -> str:
        total = max(1, self.num_frozen + self.num_trainable)
        text = f'{self.num_trainable:,} of {total:,} parameters train ({100 * self.num_trainable / total:.2f} %).'
        return text + (f" Patterns that match nothing: {', '.join(self.unmatched)}." if self.unmatched else '')


def freeze_by_patterns(
    named: Iterable[tuple[Sequence[str], nn.Parameter]], freeze: Sequence[str], keep: Sequence[str] = ()
) -> FreezeReport:
    """Set `requires_grad`: False where a `freeze` pattern matches and no `keep` pattern does, as it was elsewhere.

    Args:
        named: Parameters with all names they go by. Megatron-Core stores q, k and v in one tensor; patterns written
            for Hugging Face names must still find it.
        freeze: Regular expressions, matched from the start of a name (`re.match`, as NeMo does).
        keep: Patterns that win over `freeze`.

    Raises:
        ConfigError: A pattern is no regular expression, or splits a parameter of several names (q_proj frozen, v_proj
            not).
    """
    freeze_rules = [_compile(p) for p in freeze]
    keep_rules = [_compile(p) for p in keep]
    used: set[re.Pattern[str]] = set()
    report = FreezeReport()
    for names, parameter in named:
        kept = _matches(names, keep_rules, used)
        if _matches(names, freeze_rules, used) and not kept:
            parameter.requires_grad_(False)
        if parameter.requires_grad:
            report.trainable.append(names[0])
            report.num_trainable += parameter.numel()
        else:
            report.frozen.append(names[0])
            report.num_frozen += parameter.numel()
    report.unmatched = [rule.pattern for rule in (*freeze_rules, *keep_rules) if rule not in used]
    return report


def eval_frozen_modules(root: nn.Module) -> list[str]:
    """Put every outermost submodule that is all frozen into eval mode, so that its dropout and batch norm rest too.

    Returns:
        The names of those submodules. Call it after each `root.train()`.
    """
    found: list[str] = []
    _eval_frozen(root, '', found)
    return found


def _eval_frozen(module: nn.Module, prefix: str, found: list[str]) -> None:
    for name, child in module.named_children():
        parameters = list(child.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            child.eval()
            found.append(prefix + name)
        elif parameters:
            _eval_frozen(child, f'{prefix}{name}.', found)


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as err:
        raise ConfigError(f"'{pattern}' is not a regular expression: {err}.") from err


def _matches(names: Sequence[str], rules: Sequence[re.Pattern[str]], used: set[re.Pattern[str]]) -> bool:
    hits = []
    for name in names:
        matching = [rule for rule in rules if rule.match(name)]
        used.update(matching)
        hits.append(bool(matching))
    if any(hits) and not all(hits):
        inside = ', '.join(n for n, hit in zip(names, hits) if hit)
        outside = ', '.join(n for n, hit in zip(names, hits) if not hit)
        raise ConfigError(f'{inside} and {outside} are one parameter here; match all of its names or none.')
    return all(hits) and bool(hits)
