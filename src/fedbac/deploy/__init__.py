"""Cloud, edges and clients as programs of their own on a network; nothing here but the roles needs torch."""

import logging

log = logging.getLogger("fedbac")
