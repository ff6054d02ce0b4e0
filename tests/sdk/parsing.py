"""Sources parsed by one thread at a time.

The SDK parses the module of every workflow that it is given, in whichever thread it is. Before
3.11.8 the interpreter fails if another thread does the same meanwhile: "AST constructor recursion
depth mismatch".
"""

import ast
import threading
from typing import Any


def take_turns() -> None:
    """Let nobody in this process parse while somebody else does."""
    parse, turn = ast.parse, threading.RLock()

    def parse_alone(*arguments: Any, **options: Any) -> Any:
        with turn:
            return parse(*arguments, **options)

    ast.parse = parse_alone
