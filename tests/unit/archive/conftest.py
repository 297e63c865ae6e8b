"""The S3 server of the tests of backups."""

from tests.unit.backup.conftest import _s3_server, s3_endpoint

__all__ = ["_s3_server", "s3_endpoint"]
