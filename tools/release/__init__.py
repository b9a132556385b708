"""Makes what people install: wheels, the npm package, the chart, checksums. `make release` and `make version` run it."""
