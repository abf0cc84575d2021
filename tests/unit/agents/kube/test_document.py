"""An object that is read whole."""

from agents.kube.objects import Document

BODY = b'{"metadata":{"name":"a","namespace":"n","unknown":1},"spec":{"x":[1]},"content":"its own"}'


def test_a_document_keeps_what_we_do_not_know() -> None:
    """Contract core 5.4 (ours): the whole object as it came, beside the fields that are read."""
    document = Document.model_validate_json(BODY)
    assert document.metadata.name == "a"
    assert document.content == {
        "metadata": {"name": "a", "namespace": "n", "unknown": 1},
        "spec": {"x": [1]},
        "content": "its own",
    }


def test_documents_differ_by_their_content() -> None:
    """Two documents with the same metadata and another content are different, so a cache tells the change."""
    assert Document.model_validate_json(BODY) == Document.model_validate_json(BODY)
    assert Document.model_validate_json(BODY) != Document.model_validate_json(BODY.replace(b"[1]", b"[2]"))


def test_a_document_shows_no_content() -> None:
    """Whatever is in it, it shows its name only."""
    assert repr(Document.model_validate_json(BODY)) == str(Document.model_validate_json(BODY)) == "Document(n/a)"
