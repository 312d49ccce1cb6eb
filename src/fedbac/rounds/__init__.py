"""The algorithm: what the cloud does (``cloud``), what an edge does (``edge``), how a run is judged (``metrics``)."""
