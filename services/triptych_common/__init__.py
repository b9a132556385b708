"""What every Triptych service needs: contracts, settings, errors, servers, channels, logs."""

__version__ = "0.1.0"
