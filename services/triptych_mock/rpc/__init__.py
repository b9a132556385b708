"""The services of the mock, and the interceptors around them."""
