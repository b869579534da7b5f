"""Integrations with other programs, a module or a folder each, with an extra of the same name.

The core imports none of them. Each is registered by entry points, as an integration of an installed package is, and can
be deleted without breaking anything else.
"""
