"""How much is killed: set in the environment, by `make chaos` for instance."""

import os

NUM_KILLS = int(os.environ.get("CHAOS_KILLS", "3"))
SEED = int(os.environ.get("CHAOS_SEED", "19"))
REPORT = os.environ.get("CHAOS_REPORT")
