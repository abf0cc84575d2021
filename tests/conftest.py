"""Levels, skips and what all tests share."""

pytest_plugins: list[str] = []
