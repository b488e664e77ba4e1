"""Dray inside other software: web frameworks, telemetry, MCP. Each module loads what it is for; nothing else does."""
