import numpy as np


def assert_close(found, expected, rtol=None, atol=None):
    """Raise AssertionError unless arrays are equal up to the rounding of their types."""
    single = np.float32 in (np.asarray(found).dtype, np.asarray(expected).dtype)
    rtol, atol = (1.3e-6, 1e-5) if rtol is None and single else (rtol or 1e-7, 1e-7 if atol is None else atol)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)
