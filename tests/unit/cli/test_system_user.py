"""The user of the system account that `jetcluster up` makes."""

from __future__ import annotations

from pathlib import Path

from jetcluster.cli.system_user import SystemUser
from jetcluster.client.contexts import Wanted, server_options
from jetcluster.config.load import load_file


def test_the_configuration_is_valid_and_the_context_has_its_user(tmp_path: Path) -> None:
    user = SystemUser(tmp_path / "new")
    user.write(["nats://127.0.0.1:1", "nats://127.0.0.1:2"])
    options, warnings = load_file(str(user.config))
    assert warnings == [] and options.system_account_name == "$SYS" and options.accounts is not None
    ((name, password),) = [(one.user, one.password) for one in options.accounts["$SYS"].users]
    servers = server_options(Wanted(context=str(user.context)), {})
    assert servers.servers == ("nats://127.0.0.1:1", "nats://127.0.0.1:2")
    assert servers.credentials.fields("") == {"user": name, "pass": password} and name == "admin"


def test_only_its_owner_reads_it_and_each_start_has_a_new_password(tmp_path: Path) -> None:
    user = SystemUser(tmp_path)
    user.context.write_text("old")
    user.context.chmod(0o644)
    user.write(["nats://a:1"])
    first = user.context.read_text()
    assert [file.stat().st_mode & 0o777 for file in (user.config, user.context)] == [0o600, 0o600]
    user.write(["nats://a:1"])
    assert user.context.read_text() != first
