"""``Problem``: why a request is refused, as the HTTP status and one line for the client."""

from oodles.data.limits import TooLargeError
from oodles.data.readers import EmptyFileError, NotAnImageError
from oodles.errors import FileError, OodlesError
from oodles.records.text import one_line

CLIENT_GONE = 499  # the status, in logs and metrics alone, of a request whose client did not wait for the answer


class Problem(Exception):  # noqa: N818  # a refusal is not an error of the service
    """A request, or one of its inputs, that gets no answer."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after


STATUSES: dict[type[Exception], int] = {EmptyFileError: 400, NotAnImageError: 415, TooLargeError: 413}


def problem_with_image(error: Exception) -> Problem:
    """What is wrong with an image that cannot be decoded."""
    status = next((status for kind, status in STATUSES.items() if isinstance(error, kind)), 422)
    return Problem(status, one_line(error))


def problem_with_inputs(error: OodlesError) -> Problem:
    """What is wrong with inputs that the guard does not take, or asks too much of its files."""
    return Problem(422 if isinstance(error, FileError) else 400, str(error))
