"""The private parts of gin that this package uses; no other module may use one.

gin has no public way to list what is configurable, bound or used. They were last seen in gin-config `LAST_SEEN`.
"""

from __future__ import annotations

from typing import Any

import gin

LAST_SEEN = "0.5.0"


def _private(owner: Any, name: str) -> Any:
    """Return a private attribute of gin.

    Raises:
        ImportError: this version of gin has none.
    """
    try:
        return getattr(owner, name)
    except AttributeError:
        raise ImportError(
            f"gin has no {name}, which offpcc needs; it was last seen in gin-config {LAST_SEEN}: "
            f"pip install gin-config=={LAST_SEEN}"
        ) from None


CONFIG = _private(gin.config, "_CONFIG")  # all bindings: {(scope, selector): {parameter: value}}
CONSTANTS = _private(gin.config, "_CONSTANTS")
OPERATIVE_CONFIG = _private(gin.config, "_OPERATIVE_CONFIG")  # what was used: as CONFIG
SELECTORS = _private(_private(gin.config, "_REGISTRY"), "_selector_map")  # {complete name: entry}
UnknownReference = _private(gin.config, "_UnknownConfigurableReference")
inverse_lookup = _private(gin.config, "_inverse_lookup")  # a configurable -> its entry
is_literally_representable = _private(gin.config, "_is_literally_representable")  # whether gin can write a value
