"""The private parts of gin that this package uses; no other module may use one.

gin has no public way to list what is configurable, bound or used. gin-config `LAST_SEEN` still has these parts.
"""

import functools

import gin

from offpcc.utils.version import private_attribute

LAST_SEEN = "0.5.0"
_private = functools.partial(private_attribute, "gin-config", LAST_SEEN)

CONFIG = _private(gin.config, "_CONFIG")  # all bindings: {(scope, selector): {parameter: value}}
CONSTANTS = _private(gin.config, "_CONSTANTS")
IMPORTS = _private(gin.config, "_IMPORTS")  # modules that the bindings need
OPERATIVE_CONFIG = _private(gin.config, "_OPERATIVE_CONFIG")  # the values in use, in the same form as CONFIG
SELECTORS = _private(_private(gin.config, "_REGISTRY"), "_selector_map")  # {complete name: entry}
UnknownReference = _private(gin.config, "_UnknownConfigurableReference")
inverse_lookup = _private(gin.config, "_inverse_lookup")  # a configurable -> its entry
is_literally_representable = _private(gin.config, "_is_literally_representable")  # whether gin can write a value
