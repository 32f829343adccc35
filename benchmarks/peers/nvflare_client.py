"""The training script that NVFlare runs at each client: it adds one number to what it receives."""

import numpy as np
import nvflare.client as flare
from cell import mark

flare.init()
first = flare.get_site_name() == "site-1"
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    if first:
        mark()
    params = {name: values + np.float32(1e-6) for name, values in received.params.items()}
    flare.send(flare.FLModel(params=params, meta={"NUM_STEPS_CURRENT_ROUND": 1}))
