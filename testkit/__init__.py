"""Parts that bench, chaos, scripts and tests share: servers as processes, NATS clients, twins of the product's parts,
and the simulation of whole nodes. It imports none of them, and it is not in the wheel."""
