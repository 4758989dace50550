"""Settings of the fault tests, from environment variables that `make chaos`, for example, sets."""

import os

NUM_KILLS = int(os.environ.get("CHAOS_KILLS", "1"))
SEED = int(os.environ.get("CHAOS_SEED", "19"))
REPORT = os.environ.get("CHAOS_REPORT")
