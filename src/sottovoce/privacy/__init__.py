"""What it costs: guarantees, views, accountants, noise and the ledger."""

from sottovoce.privacy.ledger import Budget, Ledger, MemoryLedger, Release
from sottovoce.privacy.noise import NoiseSource, ProtectiveNoise, RecordedNoise, SimulatedNoise, as_noise

__all__ = [
    "Budget",
    "Ledger",
    "MemoryLedger",
    "NoiseSource",
    "ProtectiveNoise",
    "RecordedNoise",
    "Release",
    "SimulatedNoise",
    "as_noise",
]
