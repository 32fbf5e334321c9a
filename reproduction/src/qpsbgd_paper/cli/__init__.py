"""The paper's commands: `qpsbgd demo`, `run`, `report` and `data`."""
