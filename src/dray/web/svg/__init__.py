"""Drawings as SVG, made here: the only place where markup is put together by hand. All text in it is escaped."""
