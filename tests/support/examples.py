"""How the examples of property tests are chosen: the same ones in every run, or fresh ones."""

from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about the code.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("patient", PATIENT, derandomize=True)
settings.register_profile("wandering", PATIENT, database=None, print_blob=True)
