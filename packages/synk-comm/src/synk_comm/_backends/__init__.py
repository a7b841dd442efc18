"""One file per backend; each is a ``Fabric`` and knows nothing of the collectives."""
