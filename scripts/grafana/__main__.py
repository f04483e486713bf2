"""Write the dashboard."""

from __future__ import annotations

from pathlib import Path

from scripts.grafana.dashboard import as_json

FILE = Path(__file__).parents[2] / "docs" / "operations" / "grafana-dashboard.json"

if __name__ == "__main__":
    FILE.write_text(as_json(), "utf-8")
