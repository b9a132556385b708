"""Rates of keys as token buckets, in memory or on a server that several gateways share.

The library `limits` was considered. It counts hits in windows: it has no bucket that can be settled when a request used more or
less than was expected, and its exact strategy keeps an entry per hit, so that a request of 100,000 tokens costs 100,000 entries.
"""
