"""Prepares the process before any test imports torch.

OpenMP threads must not spin, because other programs run beside the tests. No instruction set is forced: the tests run with each one
that this CPU has.
"""

import os

from triptych_common.host.cores import limit_openmp_spinning
from triptych_common.host.cpu import ISA_VARIABLE

limit_openmp_spinning()
os.environ.pop(ISA_VARIABLE, None)
