"""The same round in other packages; each is imported only when asked for (``pip install fedbac[peers]``)."""
