"""Words for answers. Any run of words is a slice of one text that is built once."""

import hashlib
from itertools import accumulate

_WORDS = (
    "a again all and any as at batch because before began brief by called can carries claim clear cursor "
    "deep done each end every few file first from given had held in is it kept lane last line long many "
    "more never new next no of on once one only open or order other out over plain queue ran rest row runs "
    "said second sent since small so span still such than that the then they this time to two until was "
    "well went what when which while with word work worker year yes yet"
)
_STARTS = 4096
_MAX_RUN = 128

_vocabulary = _WORDS.split()
# From a hash, because sequences of `random` may differ between Python versions.
_noise = hashlib.shake_128(b"batchline simulate").digest(_STARTS + _MAX_RUN)
_words = [_vocabulary[byte % len(_vocabulary)] for byte in _noise]
_text = " ".join(_words)
_offsets = [0, *accumulate(len(word) + 1 for word in _words)]


def words(first: int, count: int) -> str:
    """`count` words, at most 128, from a position chosen by `first`."""
    start = first % _STARTS
    return _text[_offsets[start] : max(_offsets[start], _offsets[start + count] - 1)]
