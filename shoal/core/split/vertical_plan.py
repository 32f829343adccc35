"""The plan of a job on vertical data: parties with different features of the same examples.

Ceballos et al.: "SplitNN-driven vertical partitioning", 2020: each party trains a head on its features, and the
coordinator trains a tail on the concatenated outputs of the heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.errors import InvalidJob, Refused
from shoal.core.split.split_plan import SplitPlan


@dataclass(frozen=True)
class VerticalPlan:
    """Settings of a job on vertical data. `parties`: each party's own plan, in the order in which outputs are joined;
    they differ in their forms only. `ids_max`: of each party, which aligns its rows first; 0: rows are aligned."""

    parties: Mapping[str, SplitPlan]
    ids_max: int = 0

    def __post_init__(self) -> None:
        """Check the number of parties. Raises `InvalidJob`."""
        if len(self.parties) < 2:
            text = f"{len(self.parties)} parties"
            raise InvalidJob(text, code="job.vertical", hint="give the network a head for each of two or more parties")

    def of(self, party: str) -> SplitPlan:
        """Return a party's plan. Raises `Refused` for another node."""
        if party not in self.parties:
            hint = f"parties: {', '.join(self.parties)}"
            raise Refused(f"{party[:80]} is not a party", code="split.party", hint=hint)
        return self.parties[party]

    @property
    def common(self) -> SplitPlan:
        """The settings that all parties share, from the first one's plan."""
        return next(iter(self.parties.values()))
