"""A Kubernetes control plane for tests of the Helm chart, and other projects' kinds."""
