"""Integrations with other programs, one folder each, most with an optional group of dependencies (extra).

The core imports none of them. They register through entry points, as third-party plugins do, so each can be deleted
without breaking anything else.
"""
