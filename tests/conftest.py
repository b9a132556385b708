"""Before any test imports torch: its threads shall not hold the cores against whatever else runs beside the tests."""

from triptych_common.cores import bear_company

bear_company()
