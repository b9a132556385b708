"""Before any test imports torch: its threads shall not hold the cores against whatever else runs beside the tests. No instruction
set is forced, either: tests run each that this CPU has."""

import os

from triptych_common.host.cores import limit_openmp_spinning
from triptych_common.host.cpu import ISA_VARIABLE

limit_openmp_spinning()
os.environ.pop(ISA_VARIABLE, None)
