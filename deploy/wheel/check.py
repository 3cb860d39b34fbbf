"""Uses an installed package: a private store, an array, and a reduce."""

import numpy as np

import hoplite

assert "site-packages" in hoplite.__file__, hoplite.__file__
with hoplite.init() as client:
    client.put("x", np.arange(1000, dtype=np.float32))
    client.put("y", np.ones(1000, dtype=np.float32))
    client.reduce("sum", ["x", "y"])
    assert (client.get("sum") == np.arange(1000) + 1).all()
print("the installed package puts, reduces and gets")
