"""Benchmarks. Each prints rates as ratios to a raw loop in the same run; see docs/explanation/benchmarks.md."""
