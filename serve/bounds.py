"""What one request, and all requests together, may ask of an endpoint. No experiment varies these."""

ANSWERS = 128
"""Answers to one request: `n` times the number of prompts. The OpenAI protocol allows as many."""
QUEUE = 1024
"""Answers that are written or waited for at once: `loop.concurrency` of an experiment is at most this."""
MESSAGES = 4096
"""Turns of one chat; a context of 32,000 tokens holds no more of eight tokens each."""
STOPS = 64
STOP_CHARACTERS = 1024
"""Of one stop string: each piece of a stream is compared with every beginning of it."""
CHOICES = 4096
CHOICE_CHARACTERS = 500_000
"""Of all choices together: their tokens become a tree in memory."""
NAME_CHARACTERS = 512
"""Of a model's name: a file's name (255), `+best64` and a hash fit."""
STOP_TOKENS = 1024
LARGEST_COUNT = 2**31 - 1
"""Of `max_tokens` and `top_k`: more is a slip of the pen, and no model has such a context."""

CONNECTIONS = 2048
"""Open connections of clients: twice the queue, so that health checks are answered beside a full one."""
BODIES_BYTES = 512 * 1024**2
"""Request bodies held at once, beside the limit to each (serve.body_bytes)."""
HEAD_SECONDS = 20.0
"""A client that has not sent the head of its request by then is cut off."""
BODY_SECONDS = 120.0
"""The same for the body: 4 MB arrive in time at 300 kbit/s."""
SEND_SECONDS = 300.0
"""A client that does not read what it is sent for so long is cut off."""
OPEN_FILES = 16_384
"""A connection of a client, and one to the worker for each of its answers."""

RETRY_SECONDS = 5
"""Said in Retry-After. Clients of this protocol wait for what a server asks, up to a minute."""
