"""`python -m triptych_gateway`."""

from triptych_gateway.main import main

main()
