"""A small program that uses the public names with types: mypy checks it with the tests, and a test runs it."""
