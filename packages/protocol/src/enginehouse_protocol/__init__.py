"""The words every part of Enginehouse shares. Start with `events` and `engine`."""
