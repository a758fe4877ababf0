"""`check_address`: Ray itself would try for minutes where no cluster answers."""

import importlib.util
import socket
import threading

import pytest

from offpcc.utils import ray_cluster
from offpcc.utils.errors import UserError
from offpcc.utils.ray_cluster import check_address


@pytest.fixture(autouse=True)
def with_ray(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_USE_TLS", raising=False)


@pytest.fixture
def serve():
    """Start a server that answers once; a function of the answer, None for none, that returns its address."""
    opened = []

    def start(answer):
        def talk():
            connection, _ = server.accept()
            connection.recv(1000)
            if answer is None:
                opened.append(connection)  # it stays open, and silent
            else:
                connection.sendall(answer)
                connection.close()

        server = socket.create_server(("127.0.0.1", 0))
        opened.append(server)
        threading.Thread(target=talk, daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield start
    for one in opened:
        one.close()


def test_what_answers_as_grpc_is_taken(serve, monkeypatch):
    address = serve(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    check_address(address, "--address")
    monkeypatch.setenv("RAY_ADDRESS", serve(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])))
    check_address("auto", "--address")


@pytest.mark.parametrize(
    ("answer", "told"),
    [(b"HTTP/1.1 400 Bad Request", "another program answers there"), (b"", "it closes"), (None, "timed out")],
)
@pytest.mark.parametrize("by_variable", [False, True])
def test_other_servers_are_refused(serve, monkeypatch, answer, told, by_variable):
    monkeypatch.setattr(ray_cluster, "ANSWERS_WITHIN", 0.5)
    address = serve(answer)
    if by_variable:
        monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError, match=rf"--address {address}: there is no Ray cluster \({told}"):
        check_address("auto" if by_variable else address, "--address")


def test_a_real_grpc_server_is_taken():
    grpc = pytest.importorskip("grpc")
    from concurrent.futures import ThreadPoolExecutor

    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        check_address(f"127.0.0.1:{port}", "--address")
    finally:
        server.stop(None)
