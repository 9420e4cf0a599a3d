import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# The modules beside this file are imported by name, also by the processes that the tests start.
sys.path.append(str(Path(__file__).parent))

BUDGET = float(os.environ.get("OARBANK_CAS_TEST_BUDGET", "1"))

settings.register_profile(
    "attempt",
    deadline=None,
    max_examples=max(1, int(60 * BUDGET)),
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
