"""A Kubernetes control plane with three kubelets on one machine: what it needs, its parts, and their end."""
