"""Seeds with encrypted stores, and servers that get another key."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from jetcluster.files import Files
from jetcluster.sealing.api import KeyringError
from jetcluster.sealing.keyring import Keyring
from testkit.sim.layout import Encryption
from testkit.sim.machine import DATA
from tests.sim.cluster.run import started
from tests.sim.cluster.scenario import CIPHERS, Scenario
from tests.sim.cluster.server_changes import rotate


def test_some_seeds_have_encrypted_stores_and_some_of_them_other_keys() -> None:
    drawn = [Scenario.of(seed) for seed in range(200)]
    ciphers = Counter(scenario.cipher for scenario in drawn)
    assert ciphers.keys() == {"", *CIPHERS} and 100 < ciphers[""] < 190
    assert {scenario.rotates for scenario in drawn if scenario.cipher} == {False, True}
    assert not any(scenario.rotates for scenario in drawn if not scenario.cipher)


def test_no_seed_has_two_versions_and_what_the_older_one_refuses_at_the_start() -> None:
    mixed = [one.workloads for one in map(Scenario.of, range(3000)) if "upgrades" in one.workloads]
    assert len(mixed) > 50 and not any({"keys", "dead-letters", "guarded"}.intersection(names) for names in mixed)


def test_a_store_gets_another_key_at_a_start_and_is_read_with_it() -> None:
    with Encryption.chosen("aes"):
        deployment = started()
        changes = rotate(deployment, Random(1), 3.0)
        deployment.run_until_done(deployment.spawn(deployment.client("keys"), changes), 10.0)
        machine = deployment.machines["n2"]
        new, old = deployment.servers["n2"].secrets
        assert _data_keys(machine.disk.files, old) == 1, "it counts from the next start on"
        machine.kill()
        machine.start()
        deployment.run(8.0)
        assert machine.ready and _data_keys(machine.disk.files, new) == 2
        with pytest.raises(KeyringError):
            _data_keys(machine.disk.files, old)
        deployment.close()


def _data_keys(files: Files, secret: str) -> int:
    """The number of data keys of a store that this key opens."""
    return len(Keyring.unlock(Path(DATA).parent, secret, "", files).keys)
