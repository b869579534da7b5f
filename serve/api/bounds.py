"""Limits of one request, and of all requests together. No experiment varies them."""

ANSWERS = 128
"""Answers to one request: `n` times the number of prompts. The OpenAI protocol has the same limit."""
ANSWERS_AT_ONCE = 1024
"""Answers in progress or waiting at once: `loop.concurrency` of an experiment is at most this."""
MESSAGES = 4096
"""Messages of one chat; a context of 32,000 tokens holds no more messages of eight tokens each."""
STOPS = 64
STOP_CHARACTERS = 1024
"""Length of one stop string: each piece of a stream is compared with every prefix of it."""
CHOICES = 4096
CHOICE_CHARACTERS = 500_000
"""Length of all choices together: their tokens become a tree in memory."""
NAME_CHARACTERS = 512
"""Length of a model name: a file name (255), `+best64` and a hash fit."""
STOP_TOKENS = 1024
LARGEST_COUNT = 2**31 - 1
"""Limit of `max_tokens` and `top_k`: a larger number is a mistake, and no model has such a context."""

CONNECTIONS = 2048
"""Open client connections: twice the queue, so that health checks are answered while the queue is full."""
BODY_BYTES = 4_000_000
"""Size of one request body: a prompt of a million tokens fits, and no model here has such a context."""
BODIES_BYTES = 512 * 1024**2
"""Total size of the request bodies in memory."""
HEAD_SECONDS = 20.0
"""Time for the head of a request, after which the client is disconnected."""
BODY_SECONDS = 120.0
"""Time for the body of a request: enough for 4 MB at 300 kbit/s."""
SEND_SECONDS = 300.0
"""Time after which a client that does not read its response is disconnected."""
OPEN_FILES = 16_384
"""Limit of open files: the client connections, and a connection to the worker for each answer."""

RETRY_SECONDS = 5
"""Value of Retry-After. Clients of this protocol honour up to a minute."""
