"""`check_address`: Ray itself would try for minutes where no cluster answers."""

import importlib.util
import socket

import pytest

from offpcc.utils.errors import UserError
from offpcc.utils.ray_cluster import check_address


@pytest.fixture(autouse=True)
def with_ray(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.parametrize("by_variable", [False, True])
def test_an_address_where_nothing_listens_is_refused(monkeypatch, by_variable):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if by_variable:
            monkeypatch.setenv("RAY_ADDRESS", address)
        given = "auto" if by_variable else address
        check_address(given, "--address")
    with pytest.raises(UserError, match=rf"--address {address}: there is no Ray cluster \(.*refused"):
        check_address(given, "--address")
