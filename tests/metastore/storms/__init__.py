import pytest

# Their assertions are those of the tests that call them, and explain themselves as those do.
pytest.register_assert_rewrite("tests.metastore.storms.watch_storm")
