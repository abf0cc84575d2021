"""The notes of events about what failed."""

from nodeagent.controllers.operatingsystemconfig.summary import notes

MOST = 1024


def test_one_note_where_it_fits() -> None:
    """As operators have always read it."""
    assert notes({"file /a": "no", "unit b.service": "why"}) == [
        "2 items could not be applied: file /a: no; unit b.service: why"
    ]


def test_every_item_is_named_with_its_cause() -> None:
    """More items than one note holds, with causes of any length and letters of several bytes."""
    failed = {f"file /etc/some/where/{index}": f"cause {index} " + "ä" * 40 * index for index in range(25)}
    found = notes(failed)
    assert all(len(note.encode()) <= MOST for note in found)
    assert all(note.startswith("25 items could not be applied: ") for note in found)
    for name, cause in failed.items():
        assert [note for note in found if f"{name}: {cause[:9]}" in note], name


def test_what_is_too_much_is_counted() -> None:
    """A storm is no reason for hundreds of events."""
    failed = {f"file /{'x' * 90}/{index}": "broken " * 100 for index in range(300)}
    found = notes(failed)
    assert len(found) == 8
    named = sum(note.count("file /") for note in found)
    assert found[-1].endswith(f"; and {300 - named} more, see the status")
    assert all(len(note.encode()) <= MOST for note in found)


def test_a_name_without_end_is_cut() -> None:
    """Of what is longer than a note the beginning counts."""
    (note,) = notes({"file /" + "x" * 5000: "broken"})
    assert len(note.encode()) <= MOST
    assert note.endswith("...")
