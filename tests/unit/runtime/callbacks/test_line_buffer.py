from headrace.runtime.callbacks.line_buffer import LineBuffer


def test_lines_are_whole_however_they_arrive() -> None:
    buffer = LineBuffer()
    assert buffer.add("a", b"one\ntw") == [b"one"]
    assert buffer.add("b", b"other") == []
    assert buffer.add("a", b"o\n\nthree") == [b"two", b""]
    assert buffer.flush() == [("a", b"three"), ("b", b"other")]
    assert buffer.add("a", b"four\n") == [b"four"]
    assert buffer.flush() == []
