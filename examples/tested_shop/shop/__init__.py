"""A small shop whose tasks are tested in ../tests."""
