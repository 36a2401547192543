"""The sixteen cells of the permission matrix, each through `enginehouse run` where nobody can be asked.

Rule: what happened is read from the disk and from what the model was told, not from the record alone.
"""

import pytest

from end_to_end.conftest import Introduction
from model_server import Call, call, reply

CALLS: dict[str, Call] = {
    "safe": call("read_file", {"path": "there.txt"}),
    "write": call("write_file", {"path": "made.txt", "content": "made\n"}),
    "dangerous": call("bash", {"command": "python3 -c \"open('made.txt', 'w')\""}),
    "critical": call("bash", {"command": "touch made.txt; rm -rf ~/doomed"}),
}
"""One tool use of each risk. Those above `safe` leave `made.txt` behind when they run."""

MATRIX = {
    ("plan", "safe"): "allow",
    ("plan", "write"): "deny",
    ("plan", "dangerous"): "deny",
    ("plan", "critical"): "deny",
    ("default", "safe"): "allow",
    ("default", "write"): "ask",
    ("default", "dangerous"): "ask",
    ("default", "critical"): "ask",
    ("accept-edits", "safe"): "allow",
    ("accept-edits", "write"): "allow",
    ("accept-edits", "dangerous"): "ask",
    ("accept-edits", "critical"): "ask",
    ("yolo", "safe"): "allow",
    ("yolo", "write"): "allow",
    ("yolo", "dangerous"): "allow",
    ("yolo", "critical"): "allow",
}


@pytest.mark.parametrize("mode,risk", list(MATRIX))
def test_the_matrix_holds_through_run(meet: Introduction, mode: str, risk: str) -> None:
    person = meet([reply(calls=[CALLS[risk]]), reply("That is all.")])
    (person.project / "there.txt").write_text("the text\n")
    (person.home / "doomed").mkdir()
    ended = person.runs("run", "--json", "--mode", mode, "go")

    verdict = MATRIX[mode, risk]
    [decided] = ended.bodies("permission.decided")
    assert decided["risk"] == risk
    assert (decided["decision"]["type"], decided["by"]) == {
        "allow": ("allow", "mode"),
        "deny": ("deny", "mode"),
        "ask": ("expired", "expiry"),
    }[verdict]
    assert ended.code == (4 if verdict == "ask" else 0)
    ran = (
        "the text" in meet.asked()[-1].tool_results[0].text
        if risk == "safe"
        else (person.project / "made.txt").exists()
    )
    assert ran is (verdict == "allow")
    assert (person.home / "doomed").exists() is not (risk == "critical" and verdict == "allow")
    assert [body["status"] for body in ended.bodies("tool.result")] == ["ok" if verdict == "allow" else "denied"]
