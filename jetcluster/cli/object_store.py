"""`jetcluster object add BUCKET`: a bucket that both the object service and stock clients can use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jetcluster.cli.common import DONE, NOT_REACHED, REFUSED, fail, urls_of
from jetcluster.errors import ApiError, PassingError
from jetcluster.spark.connection import Connection
from jetcluster.spark.credentials import Credentials, CredentialsError
from jetcluster.spark.reply import ServerError

NAME_IN_USE = 10058


@dataclass(slots=True)
class Wish:
    """A bucket as it is asked for. `max_bytes` 0 and `ttl` (seconds) 0: no limit."""

    bucket: str
    replicas: int = 1
    storage: str = "file"
    max_bytes: int = 0
    ttl: float = 0.0
    description: str = ""

    def config(self) -> dict[str, Any]:
        """The configuration of the bucket's stream: as stock clients make it, with the subjects of the object
        service."""
        bucket = self.bucket
        return {
            "name": f"OBJ_{bucket}",
            "subjects": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>", f"$OBJ.{bucket}.>"],
            "retention": "limits",
            "discard": "new",
            "storage": self.storage,
            "num_replicas": self.replicas,
            "max_bytes": self.max_bytes or -1,
            "max_age": int(self.ttl * 1e9),
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            **({"description": self.description} if self.description else {}),
        }


def run_add(servers: str, wish: Wish, credentials: str = "") -> int:
    """The exit code: 0 the bucket is there (new, or as wished already), 1 refused, 2 no server answered. The first of
    `servers` (URLs, by commas) that can be reached is asked."""
    urls = urls_of(servers)
    try:
        with Connection(urls, credentials=Credentials(creds_file=credentials)) as connection:
            connection.api(f"STREAM.CREATE.OBJ_{wish.bucket}", wish.config())
    except ApiError as error:
        in_use = f"bucket {wish.bucket} is there, with another configuration"
        code = NOT_REACHED if error.retriable else REFUSED
        return fail("object add", in_use if error.err_code == NAME_IN_USE else str(error), code)
    except (ServerError, CredentialsError) as error:
        return fail("object add", str(error), REFUSED)
    except PassingError as error:
        return fail("object add", str(error), NOT_REACHED)
    print(f"bucket {wish.bucket} is ready: $O.{wish.bucket} for stock clients, $OBJ.{wish.bucket} for the service")
    return DONE
