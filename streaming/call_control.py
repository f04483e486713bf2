"""What the model's tool calls do to the call: each at most once, one after another, and one result for every call.

The calls of a reply are handed over when it ends. Only those of a reply that was heard to its end are done; whatever
cut the reply, they die with it. Every call and its result enter the conversation, so the model knows what it did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from streaming.conversation import Conversation, Item, ItemError, PartKind
from streaming.effects import Count, Effect, HoldCaller, Notify, SendDtmf, Transfer
from streaming.events import ControlDone
from streaming.jobs import ToolCall, ToolCalled
from streaming.notices import ItemAdded, Status
from streaming.reply import Reply
from streaming.tools import MAX_ARGUMENT_CHARS, Action, HangUp, HoldFor, Press, ToolError, TransferTo, read_call

TRANSFER_BOUND_S = 120.0
"""A transfer may ring at the other end for long."""
CONTROL_BOUND_S = 20.0
TAKE_BACK_TRIES = 3
TAKE_BACK_PAUSE_S = 1.0
"""A line may refuse to take a caller back at a moment (both ends asked at once); left on hold, they hear nobody."""
MAX_ROUNDS = 4
"""Replies in a row that answer only the results of tools. The next has no tools, so it must be words."""
MAX_CALL_ID_CHARS = 64
MAX_NAME_CHARS = 64

AGENT_HUNG_UP = "agent_hung_up"
TRANSFERRED = "transferred"

CALL_ENDED = ("call_ended", "the call ended before")


@dataclass(slots=True)
class _Running:
    """The one call that is under way. ``until``: its bound, or of a hold when the caller is taken back."""

    call: ToolCall
    action: Action
    until: float
    on_hold: bool = False
    wanted: bool = False
    """Of a caller who is wanted before they are on hold."""
    coming_back: bool = False
    tries: int = 0
    again_at: float = 0.0
    """Of a caller who could not be taken back: not before this."""


class CallControl:
    """``changed`` is told that the context is another now."""

    def __init__(
        self,
        conversation: Conversation,
        new_id: Callable[[str], str],
        changed: Callable[[], None],
        emit: Callable[[Effect], None],
    ) -> None:
        self.owed = False
        """The model has results to answer."""
        self.ends: str | None = None
        """Why the call is over: the model hung up, or handed the caller over."""
        self._conversation = conversation
        self._new_id = new_id
        self._changed = changed
        self._emit = emit
        self._waiting: deque[tuple[ToolCall, Action]] = deque()
        self._running: _Running | None = None
        self._given_up: _Running | None = None
        """What took too long: it may succeed all the same."""
        self._rounds = 0

    @property
    def active(self) -> bool:
        """Whether something is under way: then no reply begins."""
        return self._running is not None or self.ends is not None

    @property
    def state(self) -> str | None:
        """For people; None: nothing is under way."""
        if self._running is None:
            return None
        match self._running.action:
            case TransferTo():
                return "transferring"
            case HoldFor():
                return "on_hold"
            case _:
                return "acting"

    @property
    def may_call(self) -> bool:
        """Whether the reply that begins now is given tools."""
        return self._rounds <= MAX_ROUNDS

    def reply_begins(self, *, answers_caller: bool) -> None:
        self._rounds = self._rounds + 1 if self.owed and not answers_caller else 0
        self.owed = False

    def take(self, reply: Reply, status: Status, now: float) -> None:
        """A reply has ended. Its tools act now that all of it was heard; those of a reply that was cut never do."""
        if status in ("completed", "incomplete"):
            self._begin(reply, now)
        elif reply.failure:
            self._drop(reply, "reply_failed", "not done: the reply could not be spoken")
        else:
            self._drop(reply, "interrupted", "not done: you were interrupted before")

    # --- a reply's calls --------------------------------------------------------------------------------------

    def _begin(self, reply: Reply, now: float) -> None:
        """Do what it calls for, what ends the call after all else."""
        todo: list[tuple[ToolCall, Action]] = []
        at = reply.item_id
        for call in self._named(reply.calls):
            at = self._file_call(call, at)
            try:
                todo.append((call, read_call(call.name, call.arguments, reply.config)))
            except ToolError as error:
                self._emit(Count("tool_call_refused"))
                self._file_result(call, error.code, str(error))
                self.owed = self.may_call  # a model that calls what it was not given is not asked for ever
        todo.sort(key=lambda one: isinstance(one[1], HangUp | TransferTo))
        self._waiting.extend(todo)
        self._next(now)

    def _drop(self, reply: Reply, code: str, message: str) -> None:
        at = reply.item_id
        for call in self._named(reply.calls):
            self._emit(Count("tool_call_dropped"))
            at = self._file_call(call, at)
            self._file_result(call, code, message)

    # --- what becomes of them ---------------------------------------------------------------------------------

    def done(self, event: ControlDone, now: float) -> None:
        running = self._running
        if running is None or running.call.id != event.tool_call:
            self._emit(Count("late_control"))
            self._done_late(event)
            return
        if isinstance(running.action, HoldFor) and event.code is None and not running.coming_back:
            running.on_hold = True
            running.until = now + running.action.seconds
            if running.wanted:
                self.take_back(now)
            return
        if running.coming_back and event.code is not None and running.tries < TAKE_BACK_TRIES:
            running.coming_back = False
            running.until = running.again_at = now + TAKE_BACK_PAUSE_S
            return
        self._settle(running, event.code, event.message, now)

    def _done_late(self, event: ControlDone) -> None:
        late, code = self._given_up, event.code
        if late is None or late.call.id != event.tool_call:
            return
        self._given_up = None
        if code is None and isinstance(late.action, TransferTo):
            self.ends = TRANSFERRED  # the caller is with someone else, whatever was thought of it
        elif code is None and isinstance(late.action, HoldFor) and not late.coming_back:
            self._emit(HoldCaller(late.call.id, on=False))  # nobody would take them back

    def take_back(self, now: float) -> None:
        """The caller on hold is wanted: let them hear again."""
        running = self._running
        if running is None:
            return
        running.wanted = True
        if running.on_hold and not running.coming_back and now >= running.again_at:
            running.coming_back = True
            running.tries += 1
            running.until = now + CONTROL_BOUND_S
            self._emit(HoldCaller(running.call.id, on=False))

    def deadline(self) -> float | None:
        """When :meth:`on_time` wants to be called at the latest."""
        return None if self._running is None else self._running.until

    def on_time(self, now: float) -> None:
        running = self._running
        if running is None or now < running.until:
            return
        if running.on_hold and not running.coming_back:
            self.take_back(now)
            return
        self._emit(Count("control_timeout"))
        self._given_up = running
        self._settle(running, "timeout", "it was not done in time", now)

    def stop(self, code: str, message: str) -> None:
        """What has not begun never does."""
        while self._waiting:
            self._file_result(self._waiting.popleft()[0], code, message)

    def abandon(self) -> None:
        """After a defect: nothing is under way any more."""
        running, self._running = self._running, None
        if running is not None:
            if running.on_hold and not running.coming_back:
                running.coming_back = True
                self._emit(HoldCaller(running.call.id, on=False))
            self._given_up = running
            self._file_result(running.call, "internal_error", "a defect ended it")
        self.stop("internal_error", "a defect ended it")

    # --- inside -----------------------------------------------------------------------------------------------

    def _next(self, now: float) -> None:
        while self._waiting and self._running is None and self.ends is None:
            call, action = self._waiting.popleft()
            self._emit(Count(f"tool_{call.name}"))
            match action:
                case HangUp():
                    self._file_result(call, None, "")
                    self.ends = AGENT_HUNG_UP
                case TransferTo(_, address):
                    self._start(call, action, now + TRANSFER_BOUND_S, Transfer(call.id, address))
                case Press(digits):
                    self._start(call, action, now + CONTROL_BOUND_S, SendDtmf(call.id, digits))
                case _:
                    self._start(call, action, now + CONTROL_BOUND_S, HoldCaller(call.id, on=True))
        if self.ends is not None:
            self.stop(*CALL_ENDED)

    def _start(self, call: ToolCall, action: Action, until: float, effect: Effect) -> None:
        self._running = _Running(call, action, until)
        self._emit(effect)

    def _settle(self, running: _Running, code: str | None, message: str, now: float) -> None:
        self._running = None
        self._file_result(running.call, code, message)
        if code is None and isinstance(running.action, TransferTo):
            self.ends = TRANSFERRED
        else:
            if code is not None:
                self._emit(Count("tool_failed"))
            self.owed = True
        self._next(now)

    def _named(self, calls: Sequence[ToolCalled]) -> list[ToolCall]:
        """The calls, each with an id that no other has."""
        used = {item.call_id for item in self._conversation.items if item.call_id}
        named = []
        for call in calls:
            call_id = call.call_id
            if not call_id or len(call_id) > MAX_CALL_ID_CHARS or call_id in used:
                call_id = self._new_id("call")
            used.add(call_id)
            arguments = call.arguments[: MAX_ARGUMENT_CHARS + 1]  # more is refused, and need not be kept
            named.append(ToolCall(call_id, call.name[:MAX_NAME_CHARS], arguments))
        return named

    def _file_call(self, call: ToolCall, after: str) -> str:
        item = Item(
            self._new_id("item"),
            "assistant",
            PartKind.FUNCTION_CALL,
            call.arguments,
            call_id=call.id,
            name=call.name,
        )
        self._add(item, after)
        return item.id

    def _file_result(self, call: ToolCall, code: str | None, message: str) -> None:
        result = {"status": "done"} if code is None else {"status": "failed", "error": code}
        if message:
            result["message"] = message
        text = msgspec.json.encode(result).decode()
        item = Item(
            self._new_id("item"), "assistant", PartKind.FUNCTION_CALL_OUTPUT, text, call_id=call.id, name=call.name
        )
        self._add(item, None)

    def _add(self, item: Item, after: str | None) -> None:
        try:
            previous = self._conversation.add(item, after)
        except ItemError:  # its reply's item was deleted meanwhile
            previous = self._conversation.add(item)
        self._changed()
        self._emit(Notify(ItemAdded(item, previous, done=True)))
