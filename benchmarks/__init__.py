"""Measurements. Each prints rates as ratios to a raw loop that runs beside it; see docs/explanation/benchmarks.md."""
