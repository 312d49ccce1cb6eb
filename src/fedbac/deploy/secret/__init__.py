"""A sum of whole numbers of which nobody learns more (Bonawitz et al., 2017): masks that cancel, and secrets shared so
that the masks of clients that vanish can be taken off. It knows nothing of methods, messages or networks."""
