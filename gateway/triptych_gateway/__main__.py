"""`python -m triptych_gateway`."""

import sys

from triptych_gateway.main import main

if sys.argv[0].endswith("__main__.py"):
    # The program name that --help shows.
    sys.argv[0] = "python -m triptych_gateway"
main()
