"""Makes docs/operations/grafana-dashboard.json: `python -m scripts.grafana`."""
