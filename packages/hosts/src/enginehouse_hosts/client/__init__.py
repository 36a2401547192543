"""The hub of another process, with the same face as the hub in this one.

Rule: whoever holds it need not know that there are processes: what a death interrupted is asked again, and a view goes
on after the last event it delivered. Only what cannot be repaired is raised.

| room | owns |
|---|---|
| `line` | one connection, from `initialize` to its end, and whose view is which |
| `link` | the one line there is at a time: reaching the hub again, and when to stop |
| `remote_view` | one view: what was received and not delivered, where to go on |
| `remote_hub` | the verbs: deadlines, ids made here, asking again |
"""

from enginehouse_hosts.client.link import Dial
from enginehouse_hosts.client.remote_hub import RemoteHub

__all__ = ["Dial", "RemoteHub"]
