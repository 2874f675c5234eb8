"""Removed: importing it raises an ImportError that names the replacement."""

from .removed import message

raise ImportError(message("cutback", "functional"), name="cutback.functional")
