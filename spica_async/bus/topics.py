"""Matching of event topics against subscription patterns, by AMQP's rules."""

from __future__ import annotations

from collections.abc import Sequence


def topic_matches(pattern: str, topic: str) -> bool:
    """Tell whether the topic falls under the pattern.

    Both are words joined by dots; in the pattern `*` stands for exactly one word and `#` for any
    number of words, none included.
    """
    return _match(pattern.split("."), topic.split("."))


def _match(pattern: Sequence[str], words: Sequence[str]) -> bool:
    if not pattern:
        return not words
    head, rest = pattern[0], pattern[1:]
    if head == "#":
        return any(_match(rest, words[skipped:]) for skipped in range(len(words) + 1))
    return bool(words) and head in ("*", words[0]) and _match(rest, words[1:])
