#!/opt/jetcluster/bin/python -IS
"""`smoke.py --client HOST:PORT HOST:PORT...`: exit code 0 when all servers are healthy and JetStream answers a client.

The addresses are those of the monitoring ports. `helm test` runs it. Without --client no client connects.
"""

import http.client
import json
import socket
import sys


def healthy(address: str) -> str:
    """Returns what is wrong with a server, "" for nothing."""
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        text = answer.read(2000).decode(errors="replace")
    except OSError as error:
        return str(error)
    return "" if answer.status == 200 else f"{answer.status} {text}"


def jetstream(address: str) -> str:
    """Asks $JS.API.INFO as a client without a password; returns what is wrong, "" for nothing."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5) as client, client.makefile("rb") as lines:
            client.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB i 1\r\n')
            client.sendall(b"PUB $JS.API.INFO i 0\r\n\r\nPING\r\n")
            for line in lines:
                if line.startswith(b"-ERR"):
                    return line.decode(errors="replace").strip()
                if line.startswith(b"HMSG"):
                    return "JetStream does not answer"
                if line.startswith(b"MSG"):
                    error = json.loads(lines.readline()).get("error")
                    return json.dumps(error) if error else ""
    except OSError as error:
        return str(error)
    return "the connection was closed"


words = sys.argv[1:]
client = words.pop(1) if words[:1] == ["--client"] else ""
wrong = {address: healthy(address) for address in words[bool(client) :]}
if client:
    wrong[client] = jetstream(client)
for address, reason in wrong.items():
    print(f"{address}: {reason or 'ok'}", flush=True)
sys.exit(any(wrong.values()))
