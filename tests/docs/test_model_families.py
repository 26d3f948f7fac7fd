"""The table of model families says what was measured."""

from tests.support import family_table


def test_the_table_is_that_of_the_stored_result():
    page = family_table.PAGE.read_text()
    assert page == family_table.page(page, family_table.read()), "run scripts/model-families"
