"""A made-up language to train on: the same bytes everywhere, and something to learn (each word is followed by one of four)."""

import random
import string

WORDS = 400
FOLLOWERS = 4


def made_up_text(size: int, seed: int = 7) -> str:
    """`size` bytes. Python's generator gives the same numbers on every machine for random(), and only that is used."""
    chance = random.Random(seed).random
    words = [''.join(string.ascii_lowercase[int(chance() * 26)] for _ in range(2 + int(chance() * 6))) for _ in range(WORDS)]
    followers = [[int(chance() * WORDS) for _ in range(FOLLOWERS)] for _ in range(WORDS)]
    pieces = []
    length = 0
    word = 0
    while length <= size:  # the last word has no space after it
        pieces.append(words[word])
        length += len(words[word]) + 1
        word = followers[word][int(chance() * FOLLOWERS)]
    return ' '.join(pieces)[:size]
