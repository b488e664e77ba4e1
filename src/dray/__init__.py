"""Dray."""
