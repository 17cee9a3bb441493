"""Whether a run is to be started again: from which checkpoint, and without which of its hosts."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Select
from textual.widgets.selection_list import Selection

from .. import diagnosis_facts, run_facts
from .. import formatting as fmt
from ..fleet import faulty, prospect
from ..fleet.errors import EncampError
from ..fleet.members import Member
from ..fleet.prospect import Prospect
from ..fleet.sanitize import printable
from ..fleet.store import RunView
from ..widgets.mark_list import MarkList
from .confirm import now as now_words
from .confirm import standing
from .dialog import Dialog, Fact, Text

WORD = "restart"

NEWEST = -1
"""Stands for the newest complete checkpoint in the list; 0 is none, so a step is one of them."""

FOLLOW_SECONDS = 1.0
"""How often the run is looked at while the question stands."""

LOOK_SECONDS = 10.0
"""How often the hosts are asked again for the checkpoints of a run that lives."""

EVIDENCE = "kept on the hosts; in the diagnosis b writes it here"

LEAVE_OUT = "leave it out, mark {} below"


@dataclass(frozen=True, slots=True)
class Choice:
    """How the run is restarted: `without` these hosts, from that step; None is the newest checkpoint."""

    without: tuple[str, ...] = ()
    from_step: int | None = None


Look = Callable[[Choice], Awaitable[Prospect]]


class RestartScreen(Dialog[Choice]):
    """Answers with what was chosen.

    `current` says how the run is now, `members` how the hosts are, `look` asks them what the run would go on
    from. What is shown follows the run for as long as the question stands.
    """

    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012 - as the base class has it

    @dataclass
    class Foreseen(Message):
        """What a restart means, or why that cannot be said."""

        choice: Choice
        prospect: Prospect | None
        error: EncampError | None = None

    def __init__(
        self, current: Callable[[], RunView], members: Callable[[], Sequence[Member]], look: Look
    ) -> None:
        self.run_view = current()
        super().__init__(_title(self.run_view))
        self._current = current
        self._members = members
        self._look = look
        self._shown = (self.run_view.attempt, self.run_view.state, self.run_view.live)
        self._asked = 0.0
        """When the hosts were asked last, monotonic."""
        self._offered: list[int] = []
        """Steps of the checkpoints that can be chosen."""

    def body(self) -> ComposeResult:
        """The facts, what there is to choose, and the field."""
        run = self.run_view
        yield Fact("why", "", classes="why")
        yield Fact("instead", "", classes="instead")
        several = len(self._members()) > 1
        for name, text in standing(run):
            if name == "now" or (name == "host" and not several):
                yield Fact(name, text, classes=name)
        yield Fact("from", "asking the hosts for its checkpoints …", classes="prospect")
        with Horizontal(classes="fields", id="from"):
            yield Text("checkpoint", classes="name")
        if several:
            with Horizontal(classes="fields tall"):
                yield Text("without", classes="name")
                yield MarkList(*self._selections(), compact=True)
        yield Fact("evidence", EVIDENCE, classes="evidence")
        if run.info.world_size > 1:
            yield Fact("ranks", "all of them: none of the job can go on without the others")
        code = f" code {printable(run.info.code)}" if run.info.code else " code"
        yield Fact("same", f"command, folder, environment and{code} as before")
        yield Input(placeholder=f"type {WORD}", compact=True, classes="apart")

    def _selections(self) -> list[Selection[str]]:
        """The hosts, those in trouble first, with what is wrong there."""
        told = [(member, self._trouble(member)) for member in self._members()]
        told.sort(key=lambda each: not each[1])
        width = max(len(member.name) for member, _ in told)
        return [
            Selection(Content(printable(f"{member.name:<{width}}  {trouble or 'live'}")), member.name)
            for member, trouble in told
        ]

    def _trouble(self, member: Member) -> str:
        """Why a host may be better left out; empty when nothing is known to be wrong with it."""
        if member.problem is not None:
            session = member.session
            how = session.view.link.value if session is not None and not session.live else "gone"
            return f"▲ {how}: it cannot take part now"
        if self._faults(member):
            return f"▲ refused: {self._faults(member)[0]}"
        ranks = [str(rank) for rank, host in prospect.stuck(self.run_view) if host == member.name]
        return f"▲ rank {fmt.listed(ranks)} in the kernel (D), may not end" if ranks else ""

    def _faults(self, member: Member) -> list[str]:
        return faulty.gpus(member.session.view, self.run_view.id) if member.session is not None else []

    def hint(self) -> str:
        """The way on and the way out."""
        return "shift-tab to choose, space marks · enter · esc leaves it as it is"

    def on_mount(self) -> None:
        """The word comes first; what there is to choose is one shift-tab away."""
        self.query_one("#from").display = False
        self.query_one(Input).focus()
        self._show_run()
        self._foresee(Choice())
        self.set_interval(FOLLOW_SECONDS, self.follow)

    # --- how the run is meanwhile ------------------------------------------------------------------------

    def follow(self) -> bool:
        """Show the run as it is now; returns whether it has ended, or was restarted, since it was shown."""
        before, run = self._shown, self._current()
        self.run_view = run
        self._show_run()
        changed = (before[0], before[2]) != (run.attempt, run.live)
        if changed:
            self.complain(f"Meanwhile that has changed: attempt {run.attempt} is {run.state} now.")
        looking = any(each.node is self and not each.is_finished for each in self.workers)
        old = run.live and time.monotonic() - self._asked >= LOOK_SECONDS
        if before != self._shown or (old and not looking):
            self._foresee(self.choice())
        return changed

    def _show_run(self) -> None:
        run = self.run_view
        state, reason = run.standing()
        self._shown = (run.attempt, state, run.live)
        stopped = run_facts.stopped(run)
        who = diagnosis_facts.ranks_words(stopped) if stopped else ""
        self.query_one(".title", Text).put(_title(run))
        for name, text in (
            ("why", printable(reason) if state == "stalled" else ""),
            ("instead", f"esc, then C: SIGCONT lets {who} go on, and no step is lost" if who else ""),
            ("now", now_words(run)),
            ("evidence", EVIDENCE if state == "stalled" else ""),
        ):
            for value in self.query(f".value.{name}").results(Text):
                value.put(text)
                if value.parent is not None:
                    value.parent.display = bool(text)

    # --- what it means -----------------------------------------------------------------------------------

    def choice(self) -> Choice:
        """What is chosen now."""
        step = next((each.value for each in self.query(Select)), NEWEST)
        without = tuple(name for marks in self.query(MarkList) for name in marks.selected)
        return Choice(without, step if isinstance(step, int) and step != NEWEST else None)

    @on(Select.Changed)
    @on(MarkList.SelectedChanged)
    def _changed(self) -> None:
        self.complain("")
        if len(self.choice().without) < len(self._members()):
            self._foresee(self.choice())

    @work(exclusive=True, group="prospect", exit_on_error=False)
    async def _foresee(self, choice: Choice) -> None:
        self._asked = time.monotonic()
        try:
            found = await self._look(choice)
        except EncampError as error:
            self.post_message(self.Foreseen(choice, None, error))
        else:
            self.post_message(self.Foreseen(choice, found))

    @on(Foreseen)
    def _foreseen(self, event: Foreseen) -> None:
        if event.choice != self.choice():
            return
        found = event.prospect
        now = time.time() + self.run_view.host.clock_offset
        if found is None:
            assert event.error is not None
            said = [fmt.sentences(f"not known: {event.error.message}", event.error.hint)]
        else:  # the title is the first sentence, as long as all hosts go on
            said = found.sentences(now, LEAVE_OUT)[0 if event.choice.without else 1 :]
            self._offer(found, now)
        for text in self.query(".prospect").results(Text):
            text.put("\n".join(said))

    def _offer(self, found: Prospect, now: float) -> None:
        """The checkpoints to choose from; what is chosen stays chosen while it is there."""
        if not (found.ours and found.complete):
            return
        newest = f"the newest, now step-{found.complete[0].step}"
        older = [
            (f"step-{each.step}, saved {fmt.span(max(0.0, now - each.time))} ago", each.step)
            for each in found.complete[1:]
        ]
        choices = [(newest, NEWEST), *older, ("none: begin at step 1", 0)]
        steps = [each.step for each in found.complete]
        before = list(self.query(Select))
        if steps == self._offered or any(select.expanded for select in before):
            return
        self._offered = steps
        chosen = self.choice().from_step
        kept = chosen if chosen is not None and chosen in [0, *steps[1:]] else NEWEST
        select = Select(choices, value=kept, allow_blank=False, compact=True)
        focused = any(each.has_focus for each in before)
        for each in before:  # its label would go on to show the newest one of before
            each.remove()
        row = self.query_one("#from")
        row.mount(select)
        row.display = True
        if focused:
            select.focus()

    # --- the answer --------------------------------------------------------------------------------------

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        if event.value.strip().lower() != WORD:
            self.complain(f"Nothing was done: that is not the word {WORD}.")
            return
        if self.follow():
            return
        choice, members = self.choice(), self._members()
        staying = [member for member in members if member.name not in choice.without]
        if not staying:
            self.complain("No host of it is left to go on.", "Wait until one answers.")
            return
        out = "mark that the run goes on without it (shift-tab, space)." if len(members) > 1 else ""
        for member in staying:
            if member.problem is not None:
                said = f"{member.name} cannot take part: {member.problem.message}"
                self.complain(said, f"Wait for it, or {out}" if out else "")
                return
            if out and self._faults(member) and len(staying) > 1:
                self.complain(
                    f"{member.name} is refused: {self._faults(member)[0]}.", f"{out[0].upper()}{out[1:]}"
                )
                return
        self.dismiss(choice)


def _title(run: RunView) -> str:
    ranks = f"all {fmt.plural(run.info.world_size, 'rank')} on {fmt.listed(run.hosts)}"
    what = "stop and start again" if run.live else "start again"
    return f"restart {run.id}: {ranks} {what} as attempt {run.attempt + 1}"
