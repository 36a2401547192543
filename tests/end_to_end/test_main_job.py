"""The main job: a project with a bug, an agent that finds it, fixes it and runs the project's own tests."""

from end_to_end.conftest import Introduction
from model_server import assert_prefix_chain, call, reply

SOURCE = '''\
"""Words of a text."""


def words(text: str) -> list[str]:
    return text.split(" ")
'''
TESTS = """\
import unittest

from words import words


class Words(unittest.TestCase):
    def test_any_blank_separates(self) -> None:
        self.assertEqual(words("one  two\\nthree"), ["one", "two", "three"])


if __name__ == "__main__":
    unittest.main()
"""
RUN_TESTS = call("bash", {"command": "python3 -m unittest test_words 2>&1 | tail -5"})


def test_an_agent_fixes_a_bug_and_runs_the_tests_it_was_allowed_to_run(meet: Introduction) -> None:
    edit = {"path": "words.py", "edits": [{"old": 'text.split(" ")', "new": "text.split()"}]}
    person = meet(
        [
            reply("I look around.", calls=[call("list_dir", {"path": "."}), call("read_file", {"path": "words.py"})]),
            reply(calls=[call("grep", {"pattern": "split", "path": "."})]),
            reply("The tests first.", calls=[RUN_TESTS]),
            reply("Now the fix.", calls=[call("edit_file", edit)]),
            reply(calls=[RUN_TESTS]),
            reply("Fixed: any blank separates words now."),
        ]
    )
    (person.project / "words.py").write_text(SOURCE)
    (person.project / "test_words.py").write_text(TESTS)
    assert person.runs("permissions", "allow", "execute(python3 -m unittest *)").code == 0

    ended = person.runs("run", "--json", "--mode", "accept-edits", "the words are wrong")

    assert ended.code == 0, ended.err
    assert (person.project / "words.py").read_text() == SOURCE.replace('split(" ")', "split()")
    results = [answer.text for answer in meet.asked()[-1].tool_results]
    assert len(results) == 6
    assert "FAILED" in results[3]
    assert "OK" in results[5]
    assert ended.bodies("permission.requested") == []
    assert_prefix_chain(meet.server.quiet())
    assert person.runs("sessions", "events", person.session_id()).out_bytes == ended.durable
    assert "Fixed: any blank separates words now." in person.runs("sessions", "show", person.session_id()).out
