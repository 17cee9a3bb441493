"""The refusal of an action on runs, as it goes to the viewer."""

from __future__ import annotations


class RunError(Exception):
    """An action cannot be done. `code` is for programs, `message` and `hint` are for people.

    Codes: `bad-spec`, `exists`, `no-run`, `busy`, `gpus-held`, `port-in-use`, `no-python`, `no-package`,
    `no-env`, `no-cwd`, `no-script`, `no-code`, `no-secrets`, `no-space`, `no-rank`, `left-alive`,
    `not-started`, `expired`.
    """

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
