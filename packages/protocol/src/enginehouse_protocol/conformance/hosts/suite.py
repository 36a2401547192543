"""The whole host suite as one class to subclass."""

import pytest

from enginehouse_protocol.conformance.hosts.cards import Cards
from enginehouse_protocol.conformance.hosts.floods import Floods
from enginehouse_protocol.conformance.hosts.interrupts import Interrupts
from enginehouse_protocol.conformance.hosts.showing import Showing
from enginehouse_protocol.conformance.hosts.windows import Windows


class HostConformance(Showing, Cards, Interrupts, Windows, Floods):
    """Everything a person may rely on, whatever they look through."""

    pytestmark = pytest.mark.anyio
