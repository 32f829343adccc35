"""One exception tree; an error says whose fault it is and what to do next.

    ShoalError                  everything that shoal raises on purpose
    ├── InvalidJob              the job's file or plan: fix it and submit again
    ├── InvalidPayload          bytes that are not the job's model: the sender's fault, nothing was changed
    ├── Refused                 a message that its receiver will not act on: the sender's fault, nothing was changed
    ├── LearnerFailed           the user's model or data raised: look at the node's log
    ├── Unreachable             the other side did not answer: wait, or check the address and the network
    ├── NotAllowed              no credential, a wrong or a revoked one: ask an operator for a token
    ├── StorageFailed           disk or database: free space, check permissions, then start again
    └── Cancelled               the work was withdrawn while it ran: no error

Every one carries a stable `code` (for programs), a message (what happened) and a `hint` (what to do).
"""

from __future__ import annotations


class ShoalError(Exception):
    """The root of the tree. `code` is stable, lower case and dotted, for example `payload.not-finite`."""

    default_code = "error"

    def __init__(self, message: str, *, code: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.hint = hint

    def __str__(self) -> str:
        """Return the message, and what to do in a line of its own: all that a traceback shows."""
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


def message_of(error: BaseException) -> str:
    """Return what happened, without what to do about it."""
    return error.message if isinstance(error, ShoalError) else str(error)


class InvalidJob(ShoalError):
    """The job cannot run as written."""

    default_code = "job.invalid"


class InvalidPayload(ShoalError):
    """Bytes that do not hold what the job's model says they must hold."""

    default_code = "payload.invalid"


class Refused(ShoalError):
    """A well-formed message that may not be acted on."""

    default_code = "message.refused"


class LearnerFailed(ShoalError):
    """The user's code raised while it trained, evaluated or loaded."""

    default_code = "learner.failed"


class Unreachable(ShoalError):
    """The other side cannot be reached, or closed the connection, or was too slow."""

    default_code = "network.unreachable"


class NotAllowed(ShoalError):
    """The credential is missing, wrong, used up or revoked."""

    default_code = "auth.refused"


class StorageFailed(ShoalError):
    """The disk or the database refused to keep something."""

    default_code = "storage.failed"


class Cancelled(ShoalError):
    """The task was superseded while its work ran."""

    default_code = "work.cancelled"
