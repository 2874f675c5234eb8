"""Translates PTX, as NVRTC writes it, to C that the stand-in driver compiles and runs."""
