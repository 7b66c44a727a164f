"""The mask schedule: the masking rate changes while a model trains.

Many masks give more predictions an example, few of them more context for each. So a run can begin with the first and
end with the second, as models are evaluated.
"""

from bisect import bisect_right
from dataclasses import dataclass

from openalbert.errors import UserError


@dataclass(frozen=True)
class MaskStage:
    """The masking rate from one point of the budget on."""

    rate: float
    """fraction of the tokens that is masked"""
    start: float = 0.0
    """fraction of the budget at which it begins"""


@dataclass(frozen=True)
class MaskSchedule:
    """The masking rate over a run."""

    stages: tuple[MaskStage, ...]
    """in the order in which they run; the first starts at 0"""

    @staticmethod
    def parse(text: str, first: float) -> "MaskSchedule":
        """Parse `0.2@0.5,0.15@0.8`: the rate `first`, 20 % from half of the budget on, 15 % from 80 % of it on."""
        stages = [MaskStage(first)]
        for word in filter(None, text.split(",")):
            stage = _stage(word, text)
            if not 0 < stage.rate < 1:
                raise UserError(f"mask schedule '{text}': a rate of {stage.rate:g} is none: give one between 0 and 1")
            if not stages[-1].start < stage.start < 1:
                raise UserError(
                    f"mask schedule '{text}': rate {stage.rate:g} begins at {stage.start:g}, after one that begins at "
                    f"{stages[-1].start:g}: the fractions must rise and stay between 0 and 1"
                )
            stages.append(stage)
        return MaskSchedule(tuple(stages))

    def rate(self, progress: float) -> float:
        """The masking rate at this progress through the budget."""
        return self.stages[bisect_right(self.stages, progress, key=lambda stage: stage.start) - 1].rate

    def rates_from(self, progress: float) -> list[float]:
        """The distinct rates from this progress on, the current one first."""
        later = [stage.rate for stage in self.stages if stage.start > progress]
        return list(dict.fromkeys([self.rate(progress), *later]))

    @property
    def mean(self) -> float:
        """The mean rate over the budget."""
        ends = [*(stage.start for stage in self.stages[1:]), 1.0]
        return sum(stage.rate * (end - stage.start) for stage, end in zip(self.stages, ends, strict=True))

    @property
    def highest(self) -> float:
        """The highest rate, which takes the most memory."""
        return max(stage.rate for stage in self.stages)


def _stage(word: str, text: str) -> MaskStage:
    rate, _, start = word.strip().partition("@")
    try:
        return MaskStage(float(rate), float(start))
    except ValueError:
        raise UserError(
            f"mask schedule '{text}': '{word}' is not understood: write rates with the fraction of the run at which "
            "each begins, as in '0.2@0.5,0.15@0.8'"
        ) from None
