"""Whether a run is to be started again, and without which of its hosts where some cannot take part."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from textual import on, work
from textual.app import ComposeResult
from textual.content import Content
from textual.message import Message
from textual.widgets import Input
from textual.widgets.selection_list import Selection

from .. import formatting as fmt
from ..fleet.errors import EncampError
from ..fleet.members import Member
from ..fleet.prospect import Prospect
from ..fleet.sanitize import printable
from ..fleet.store import RunView
from ..widgets.mark_list import MarkList
from .confirm import standing
from .dialog import Dialog, Fact, Text

WORD = "restart"


class RestartScreen(Dialog[tuple[str, ...]]):
    """Answers with the names of the hosts that are left out.

    `members` says how the hosts are now, `look` asks them what the run would go on from.
    """

    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012 - as the base class has it

    @dataclass
    class Foreseen(Message):
        """What a restart means, in sentences, or why that cannot be said."""

        sentences: Sequence[str]

    def __init__(
        self,
        run: RunView,
        members: Callable[[], Sequence[Member]],
        look: Callable[[], Awaitable[Prospect]],
    ) -> None:
        info = run.info
        ranks = f"all {fmt.plural(info.world_size, 'rank')} on {fmt.listed(run.hosts)}"
        what = "stop and start again" if run.live else "start again"
        super().__init__(f"restart {run.id}: {ranks} {what} as attempt {run.attempt + 1}")
        self.run_view = run
        self._members = members
        self._look = look
        self._lost = [member for member in members() if member.problem is not None]

    def body(self) -> ComposeResult:
        """The facts, a choice for each host that cannot take part, and the field."""
        state, reason = self.run_view.standing()
        if state == "stalled" and reason:
            yield Fact("why", printable(reason))
        for name, text in standing(self.run_view):
            if name == "lost":
                yield Fact("from", "asking the hosts for its checkpoints …", classes="prospect")
            else:
                yield Fact(name, text)
        if not self.run_view.live:
            yield Fact("from", "asking the hosts for its checkpoints …", classes="prospect")
        if state == "stalled":
            yield Fact("evidence", "kept on the hosts beside the logs; in the diagnosis b writes it here")
        if self.run_view.info.world_size > 1:
            yield Fact("ranks", "all of them: none of the job can go on without the others")
        yield Fact("same", "command, folder, code and environment as before")
        if self.run_view.info.code:
            yield Fact("code", printable(self.run_view.info.code))
        several = len(self._members()) > 1
        if several and self._lost:
            yield Text("go on without (space marks it; ranks may live on there):", classes="label")
            yield MarkList(
                *(Selection(Content(printable(member.name)), member.name) for member in self._lost),
                compact=True,
            )
        yield Input(placeholder=f"type {WORD}", compact=True, classes="apart")

    def hint(self) -> str:
        """The way on and the way out."""
        return f"type {WORD} and press enter to go on · esc leaves it as it is"

    def on_mount(self) -> None:
        """The word comes first; what there is to choose is one shift-tab away."""
        self.query_one(Input).focus()
        self._foresee()

    @work(exclusive=True, group="prospect", exit_on_error=False)
    async def _foresee(self) -> None:
        try:
            found = await self._look()
        except EncampError as error:
            said = fmt.sentences(f"not known: {error.message}", error.hint)
            self.post_message(self.Foreseen([said]))
        else:
            now = time.time() + self.run_view.host.clock_offset
            self.post_message(self.Foreseen(found.sentences(now)[1:]))  # the title is the first

    @on(Foreseen)
    def _foreseen(self, event: Foreseen) -> None:
        for text in self.query(".prospect").results(Text):
            text.put("\n".join(event.sentences))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        if event.value.strip().lower() != WORD:
            self.complain(f"Nothing was done: that is not the word {WORD}.")
            return
        chosen = tuple(name for marks in self.query(MarkList) for name in marks.selected)
        members = self._members()
        lost = [member for member in members if member.problem is not None and member.name not in chosen]
        if len(chosen) == len(members):
            self.complain("No host of it is left to go on.", "Wait until one answers.")
        elif lost and lost[0].problem is not None:
            offered = lost[0].name in {member.name for member in self._lost} and len(members) > 1
            self.complain(
                f"{lost[0].name} cannot take part: {lost[0].problem.message}",
                "Wait for it, or mark that the run goes on without it (shift-tab, space)." if offered else "",
            )
        else:
            self.dismiss(chosen)
