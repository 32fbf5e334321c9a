"""Several processes that train one model: what they exchange, around the plain step of one."""
