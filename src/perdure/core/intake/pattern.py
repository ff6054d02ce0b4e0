"""The size of a regular expression after expanding its repetitions.

The library compiles a pattern on every evaluation, and may traverse all of it for each byte of
text, so the size determines the work. It is an upper bound: about four for a letter, more for
character classes. Whether a pattern is well formed is checked by the library.
"""

import re
from collections.abc import Iterator

_LETTER, _ANY, _CLASS, _PROPERTY = 4, 12, 16, 2_000
_TOKEN = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|\Z)"
    r"|(?P<property>\\[pP](?:\{[^}]*\}?|.)?)"
    r"|(?P<escape>\\(?:x\{[^}]*\}?|.)?)"
    r"|(?P<set>\[\^?\]?(?:\\.|\[:[^\]]*:\]|[^\]\\])*\]?)"
    r"|(?P<open>\((?:\?(?:P?<[^>]*>|[a-zA-Z-]*:|[a-zA-Z-]*(?=\))|))?)"
    r"|(?P<close>\))"
    r"|\{(?P<least>[0-9]+)(?:(?P<comma>,)(?P<most>[0-9]*))?\}"
    r"|(?P<mark>[*+?|^$])"
    r"|(?P<any>\.)"
    r"|(?P<letter>.)",
    re.DOTALL,
)
_MANY = re.compile(r"\\[pP]|\[:\^|\\x|\\[0-7]|[^\x00-\x7f]")


def pattern_size(pattern: str) -> int:
    """About how many states the automaton of a pattern has."""
    # Each open group: its size so far, and that of its last atom, which a repetition multiplies.
    groups: list[list[int]] = [[0, 0]]
    for token in _TOKEN.finditer(pattern):
        group = groups[-1]
        if token["open"] is not None:
            groups.append([_LETTER, 0])
        elif token["close"] is not None:
            inner = sum(groups.pop())
            if not groups:  # No group to close: the library refuses the pattern.
                groups.append([0, 0])
            _append(groups[-1], inner)
        elif token["least"] is not None:
            most = int(token["most"] or token["least"]) + (token["comma"] is not None)
            group[1] *= max(1, most)
        elif token["mark"] is not None:
            group[0] += _LETTER
        else:
            for size in _atoms(token):
                _append(group, size)
    return sum(map(sum, groups))


def _append(group: list[int], size: int) -> None:
    group[0] += group[1]
    group[1] = size


def _atoms(token: re.Match[str]) -> Iterator[int]:
    if token["quoted"] is not None:
        yield from (_LETTER * len(letter.encode()) for letter in token["quoted"])
    elif token["property"] is not None:
        yield _PROPERTY
    elif token["set"] is not None:
        yield _PROPERTY if _MANY.search(token["set"]) else _CLASS + _LETTER * len(token["set"])
    elif token["any"] is not None or token["escape"] is not None:
        yield _ANY
    else:
        yield _LETTER * len(token[0].encode())
