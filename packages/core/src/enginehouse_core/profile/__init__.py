"""Everything Enginehouse keeps for one person: where it is, who holds it, and the files people write.

Rule: importing `folders` and `lock` stays cheap; pydantic is loaded only by what reads a file that exists.
"""
