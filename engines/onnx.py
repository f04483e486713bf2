"""Opening ONNX models the one way that suits cores shared by many calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engines.api import EngineError


def open_session(path: Path) -> Any:
    """An ``onnxruntime.InferenceSession`` that computes on the calling thread only.

    One thread an operator: the engines share the cores by call, and a second thread would spin on a core that
    another call needs. Blocks while it loads.

    Raises:
        EngineError: ``missing_extra`` without onnxruntime; ``model_load_failed`` when it is not a model.
    """
    try:
        import onnxruntime
    except ImportError:
        raise EngineError("missing_extra", "onnxruntime is missing: pip install -e '.[embedded]'") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions derive from RuntimeError or plain Exception, by version
        raise EngineError("model_load_failed", f"cannot load {path}: {error}") from error
