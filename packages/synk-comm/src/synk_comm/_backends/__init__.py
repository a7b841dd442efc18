"""One file per backend; each is a ``Fabric``, independent of the collectives."""
