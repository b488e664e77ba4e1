"""Handles: what people hold of a job, its attempts and its log, and of a workflow that was enqueued."""
