"""Premises over both kinds of connection."""

import pytest
from gateway.premises import MakePair, in_memory, over_a_socket


@pytest.fixture(params=[in_memory, over_a_socket], ids=["memory", "socket"])
def make_pair(request: pytest.FixtureRequest) -> MakePair:
    return request.param
