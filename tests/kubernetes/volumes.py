"""Volumes: folders of this machine, which every node may use, made before a release claims them.

A claim of a StatefulSet is called data-NAME-0 and so on; each volume is for one claim by name."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.kubernetes.kube import Object, apply, kubectl
from tests.kubernetes.plane.folders import NODES

CLASS = "folders"


def make_class() -> None:
    """The default class, whose volumes may grow, where somebody does that (test_volumes.py)."""
    apply(
        {
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "kubernetes.io/no-provisioner",
            "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": True,
        }
    )  # fmt: skip


def make_volumes(root: Path, namespace: str, claims: list[str], size: str = "10Gi") -> None:
    for claim in claims:
        folder = root / namespace / claim
        folder.mkdir(parents=True, exist_ok=True)
        apply(volume(folder, namespace, claim, size))


def volume(folder: Path, namespace: str, claim: str, size: str) -> Object:
    machines = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(NODES)}
    return {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"{namespace}-{claim}"},
        "spec": {
            "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
            "persistentVolumeReclaimPolicy": "Retain", "local": {"path": str(folder)},
            "claimRef": {"namespace": namespace, "name": claim},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [machines]}]}},
        },
    }  # fmt: skip


def remove_volumes(root: Path, namespace: str, claims: list[str]) -> None:
    kubectl("delete", "pvc", "-n", namespace, "--all", "--wait=true")
    kubectl("delete", "pv", "--ignore-not-found", *[f"{namespace}-{claim}" for claim in claims])
    shutil.rmtree(root / namespace, ignore_errors=True)
