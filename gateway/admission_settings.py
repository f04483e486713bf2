"""The ``[admission]`` table: from what load on calls are refused though there are places."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from gateway.admission import Limits


class AdmissionSettings(BaseModel):
    """``[admission]``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    by_load: bool = Field(
        default=True, description="refuse calls while a measure of load is over its limit; off: max_calls alone"
    )
    loop_lag_ms: float = Field(default=100.0, gt=0, description="how late the event loop may come to what is due")
    late_frames: float = Field(
        default=0.01, gt=0, le=1, description="share of frames that may leave when the far end has none left to play"
    )
    lane_late_ms: float = Field(default=1_000.0, gt=0, description="how far past its time a job may wait for a lane")
    lane_use: float = Field(
        default=0.98,
        gt=0,
        le=1,
        description="share of a lane's slots that may be in use while jobs are past their time",
    )

    @property
    def limits(self) -> Limits | None:
        """None: nothing is measured."""
        if not self.by_load:
            return None
        return Limits(self.loop_lag_ms / 1000, self.late_frames, self.lane_late_ms / 1000, self.lane_use)
