"""The bounds of the runner SDK. Those of the wire are the protocol's, the others are ours."""

MESSAGE_BYTES_MAX = 1_048_576
"""An invoke or a reply over this drops the socket, or fails the invoke over HTTP."""

LOG_LINES_MAX = 1_000
LOG_BYTES_MAX = 262_144
"""What the lines of a pass may come to, so that they never crowd out its results."""
MESSAGE_CHARACTERS_MAX = 8_192
STACK_CHARACTERS_MAX = 16_384
POLL_GAP_MS_MIN = 250
POLL_CHECKS_MAX = 1_000
"""Every check of a poll is two steps in the memo of its run."""
EMBED_BATCH_DEFAULT = 100
LOOP_TURNS_MAX = 1_000
NAMES_KEPT = 16_384
"""Step names whose hash is remembered."""

PASSES_MAX = 1_000
"""Passes that a connected runner works on at once; more wait in line."""
PASSES_WAITING_MAX = 10_000
"""Invokes beyond this are answered with 503, so that the engine tries elsewhere."""

STEP_THREADS_DEFAULT = 32
"""Threads of an app for the plain functions of its steps; further calls wait."""
THREAD_IDLE_SECONDS = 5.0
"""After so long without a call a thread ends."""
LOOP_BLOCKED_SECONDS = 1.0
"""An event loop that does not turn for so long is reported."""

SIGNATURE_TOLERANCE_SECONDS = 300
HEAD_BYTES_MAX = 32_768
INVOKE_BYTES_MAX = 16 * 1_048_576
"""An invoke over HTTP, where the engine has no limit of its own."""

REPLY_INLINE_BYTES_MAX = 524_288
"""What the results in one reply may come to; of what follows, all but small ones are uploaded."""
SMALL_RESULT_BYTES = 1_024
RESULTS_CACHED_BYTES_MAX = 64 * 1_048_576
"""Large results that a runner remembers from one pass to the next."""
FETCHES_AT_ONCE_MAX = 8
RESULT_TRIES_MAX = 5
RESULT_BACKOFF_SECONDS = 0.1

ANSWER_BYTES_MAX = 64 * 1_048_576
"""An answer of the engine to its client."""
CONNECTIONS_IDLE_MAX = 16
"""Connections that the client keeps without a request in hand."""

GRACE_SECONDS = 10.0
"""How long passes may go on when a runner is told to stop."""
