"""Client of Triptych, and the contracts that its services speak."""

__version__ = "0.1.0"
