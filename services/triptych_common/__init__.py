"""What every Triptych service needs: contracts, settings, errors, servers, channels, logs."""

from triptych import __version__ as __version__
