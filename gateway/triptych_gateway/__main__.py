"""`python -m triptych_gateway`."""

import sys

from triptych_gateway.main import main

if sys.argv[0].endswith("__main__.py"):
    # What --help calls the program.
    sys.argv[0] = "python -m triptych_gateway"
main()
