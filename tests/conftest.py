"""Before any test imports torch: its threads shall not hold the cores against whatever else runs beside the tests. No instruction
set is forced, either: tests run each that this CPU has."""

import os

from triptych_common.host.cores import bear_company
from triptych_common.host.cpu import ISA_VARIABLE

bear_company()
os.environ.pop(ISA_VARIABLE, None)
