"""cuDNN's own description of a device, as JSON: with it, machines without the device can query
cuDNN's heuristics and kernels for it. Requires cuDNN 9.8 or later."""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path
from typing import Any

# from cudnn_graph.h
DEVICEPROP_DESCRIPTOR, DEVICE_ID, JSON_REPRESENTATION = 38, 2700, 2702
INT32, CHAR = 23, 24


def _library() -> ctypes.CDLL:
    """Returns cuDNN as opened by PyTorch, or as found by the loader."""
    pattern = re.compile(r"/\S*/libcudnn\.so[.\d]*$")
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        if found := pattern.search(line):
            return ctypes.CDLL(found[0])
    return ctypes.CDLL("libcudnn.so.9")


def device_properties(device: int = 0) -> Any:
    """Returns the description, or the reason why there is none."""
    try:
        library = _library()
    except OSError as error:
        return f"no cuDNN: {error}"
    library.cudnnGetVersion.restype = ctypes.c_size_t
    version = library.cudnnGetVersion()
    if version < 90800:
        return f"cuDNN {version} has none; 9.8 does"
    library.cudnnGetErrorString.restype = ctypes.c_char_p

    def call(entry: str, *arguments: Any) -> None:
        status = getattr(library, entry)(*arguments)
        if status:
            raise RuntimeError(f"{entry}: {library.cudnnGetErrorString(status).decode()}")

    described, number = ctypes.c_void_p(), ctypes.c_int32(device)
    size, one = ctypes.c_int64(), ctypes.c_int64(1)
    try:
        call("cudnnBackendCreateDescriptor", DEVICEPROP_DESCRIPTOR, ctypes.byref(described))
        call("cudnnBackendSetAttribute", described, DEVICE_ID, INT32, one, ctypes.byref(number))
        call("cudnnBackendFinalize", described)
        asked = (described, JSON_REPRESENTATION, CHAR)
        call("cudnnBackendGetAttribute", *asked, ctypes.c_int64(0), ctypes.byref(size), None)
        text = ctypes.create_string_buffer(size.value + 1)
        call("cudnnBackendGetAttribute", *asked, size, ctypes.byref(size), text)
        call("cudnnBackendDestroyDescriptor", described)
    except (RuntimeError, AttributeError) as error:
        return f"cuDNN {version} gives none: {error}"
    raw = text.raw[: size.value].rstrip(b"\0").decode(errors="replace")
    try:
        return json.loads(raw)
    except ValueError:
        return raw
