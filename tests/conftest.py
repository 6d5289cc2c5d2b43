"""Settings for every test."""

from hypothesis import HealthCheck, settings

# The same examples in every run, however busy the machine: a failure is a change of the code.
settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")
