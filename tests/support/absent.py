"""Says of a package that is not there that it need not be looked for again.

httpcore imports `sniffio` several times in every request. Where it is not installed, each of these
goes through every folder of the path, which took half of the time of a request. Processes of the
SDKs import this as well, so it imports nothing of ours.
"""

import importlib.util
import sys

if "sniffio" not in sys.modules and importlib.util.find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]  # How Python spells "not there".
