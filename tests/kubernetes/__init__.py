"""The chart on a real Kubernetes control plane of this machine's own: `make kubernetes`.

`plane` brings the control plane up, in namespaces of its own; the tests ask it by kubectl and helm."""
