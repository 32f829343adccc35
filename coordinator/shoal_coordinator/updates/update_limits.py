"""A job's limits for an update: its weight and its norm."""

from __future__ import annotations

from shoal.core.errors import InvalidPayload
from shoal.core.protocol.message import Report
from shoal.jobs.job_tables import UpdateLimits


def check_limits(limits: UpdateLimits, report: Report, norm: float) -> None:
    """Raise `InvalidPayload` for a weight or a norm that the job does not take."""
    if not 0 < report.weight <= limits.weight_max:
        raise InvalidPayload(
            f"a weight of {report.weight:g}; more than 0, at most {limits.weight_max:g} in this job",
            code="update.weight",
            hint="the weight is the number of examples that were trained on",
        )
    if limits.update_norm_max and norm > limits.update_norm_max:
        raise InvalidPayload(
            f"an update of norm {norm:.6g}; at most {limits.update_norm_max:g} in this job",
            code="update.norm",
            hint="lower the learning rate, clip, or raise limits.update_norm_max",
        )
