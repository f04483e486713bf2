"""The ``[admission]`` table: from what load on calls are refused though there are places."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from gateway.admission import Limits

MOST_MS = 60_000
"""Beyond it nobody is served any more; who wants no limit sets ``by_load`` to false."""
LEAST_SHARE = 0.0001
"""Below it a limit would be met by chance, and every call refused."""


class AdmissionSettings(BaseModel):
    """``[admission]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    by_load: bool = Field(
        default=True, description="refuse calls while a measure of load is over its limit; off: max_calls alone"
    )
    loop_lag_ms: float = Field(
        default=100.0, ge=1, le=MOST_MS, description="how late the event loop may come to what is due"
    )
    late_frames: float = Field(
        default=0.01,
        ge=LEAST_SHARE,
        le=1,
        description="share of frames that may leave when the far end has none left to play",
    )
    lane_late_ms: float = Field(
        default=1_000.0, ge=1, le=MOST_MS, description="how far past its time a job may wait for a lane"
    )
    lane_use: float = Field(
        default=0.98,
        ge=LEAST_SHARE,
        le=1,
        description="share of a lane's slots that may be in use while jobs are past their time",
    )

    @property
    def limits(self) -> Limits | None:
        """None: nothing is measured."""
        if not self.by_load:
            return None
        return Limits(self.loop_lag_ms / 1000, self.late_frames, self.lane_late_ms / 1000, self.lane_use)
