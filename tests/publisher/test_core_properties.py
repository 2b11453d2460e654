"""The plan under arbitrary answers: a random walk through everything that servers and networks can do to it."""

from __future__ import annotations

from random import Random
from typing import Final

from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tricklecast.publisher.core import (
    Advance,
    Plan,
    Progress,
    Receipt,
    Resync,
    RetryAfter,
    Ticket,
)
from tricklecast.trickle import errors, wire
from tricklecast.trickle.backoff import BUDGET_RATIO, BUDGET_RESERVE
from tricklecast.trickle.client.exchange import Answer, ExchangeOutcome, Lost
from tricklecast.trickle.client.retry import IDLE_S, MIN_DELAY_S, RECONNECT_S, Stop
from tricklecast.trickle.errors import TrickleError

MAX_IN_FLIGHT: Final = 3
OUTAGE_REQUESTS: Final = 60
"""More than any dice make in a minute whose delays grow to 4 s; some thirty are usual."""

statuses = st.sampled_from([200, 200, 200, 204, 301, 400, 403, 404, 405, 409, 413, 429, 470, 470, 500, 503, 503])
numbers = st.integers(-5, 60).map(str) | st.text(max_size=5)
headers = st.dictionaries(
    st.sampled_from([wire.LATEST, wire.SIZE, wire.SEQ, wire.CLOSED, wire.RETRY_AFTER, wire.EPOCH]), numbers, max_size=4
)
garbage = st.builds(Answer, statuses | st.integers(200, 599), headers, detail=st.text(max_size=5))
losses = st.sampled_from(
    [
        Lost(errors.ConnectionLost()),
        Lost(errors.ConnectionLost(), connected=False),
        Lost(errors.ConnectionLost(), waited_s=10.0),
    ]
)
nonsense = st.just(Lost(errors.RemoteProtocolError()))
lives = st.sampled_from([0.0, 0.0, 1.0, 20.0])
which = st.integers(0, 5)


class Request:
    """One segment or preconnect on its way, as the shell around the plan sees it.

    Attributes:
        open: a request is under way; otherwise it waits for its next one.
        bound: there is something to send.
    """

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.open = True
        self.bound = False
        self.over = False
        self.handed = 0


class Publishing(RuleBasedStateMachine):
    """A publisher that does what its plan says, and a world that does what it likes."""

    @initialize(
        start=st.integers(0, 50), head=st.none() | st.integers(0, 50), depth=st.integers(0, 2), seed=st.integers(0, 99)
    )
    def begin(self, start: int, head: int | None, depth: int, seed: int) -> None:
        self.plan = Plan(start if head is None else "resume", rng=Random(seed))
        if head is not None:
            self.plan.on_next(Answer(200, {wire.LATEST: str(head), wire.EPOCH: "1"}), 0.0)
        self.depth = depth
        self.live: list[Request] = []
        self.requests = self.tickets = self.segments = self.fates = self.long = self.lost = self.paid = 0
        self.free = self.backs = 0
        self.now = 0.0
        self.lost_at: float | None = None
        self.held = False
        self.confirmed = -1
        self.keys: set[str] = set()
        self.told = -1 if head is None else 0  # the newest of the plan's lives of which a server has told the epoch

    # What the shell does.

    @rule()
    def open_ahead(self) -> None:
        ahead = [request for request in self.live if not request.bound]
        while len(ahead) < self.depth and self.plan.error is None and not self.plan.uncertain:
            seq = self.plan.numbering.next
            assert seq is not None
            if not self.plan.numbering.may_open(seq):
                break
            ahead.append(self._take())

    @precondition(lambda self: self.plan.error is None)
    @rule(size=st.integers(1, 9), over=st.booleans())
    def write_a_new_segment(self, size: int, over: bool) -> None:
        assume(len([request for request in self.live if request.bound]) < MAX_IN_FLIGHT)
        ahead = [request for request in self.live if not request.bound]
        assume(ahead or not self.plan.uncertain)
        request = min(ahead, key=lambda one: one.ticket.seq) if ahead else self._take()
        request.bound, request.handed, request.over = True, size, over
        self.plan.numbering.bind(request.ticket.seq)
        if request.open:
            self.plan.begin(request.ticket)

    @precondition(lambda self: any(request.bound and not request.over for request in self.live))
    @rule(at=which, size=st.integers(0, 9), over=st.booleans())
    def write_more(self, at: int, size: int, over: bool) -> None:
        writing = [request for request in self.live if request.bound and not request.over]
        request = writing[at % len(writing)]
        request.handed += size
        request.over = over

    @precondition(lambda self: any(request.bound for request in self.live))
    @rule(at=which)
    def drop(self, at: int) -> None:
        bound = [request for request in self.live if request.bound]
        request = bound[at % len(bound)]
        if request.open:
            self.plan.uncertain = True
            self.lost += 1
        self.plan.numbering.settle(request.ticket.seq, closed=False)
        self._finish(request)

    @precondition(lambda self: self.plan.uncertain and self.plan.error is None)
    @rule(outcome=garbage | losses, lived_s=lives)
    def ask_for_the_position(self, outcome: ExchangeOutcome, lived_s: float) -> None:
        self.requests += 1
        self.now += lived_s
        verdict = self.plan.on_located(outcome, self.plan.numbering.confirmed, self.now, lived_s)
        if isinstance(verdict, RetryAfter):
            self._wait(verdict.delay_s, outcome, lived_s)
        elif isinstance(verdict, Stop):
            self._check_stop(verdict)
        else:
            assert not self.plan.uncertain
            self.backs += 1

    @precondition(lambda self: self.plan.uncertain and self.plan.error is None)
    @rule(times=st.sampled_from([1, 3, 40]))
    def find_nobody(self, times: int) -> None:
        while times > 0 and self.plan.error is None:
            self.ask_for_the_position(Lost(errors.ConnectionLost(), connected=False), 0.0)
            times -= 1

    @precondition(lambda self: self.plan.uncertain and self.plan.error is None)
    @rule()
    def find_the_position(self) -> None:
        self.ask_for_the_position(Answer(200, {wire.LATEST: str(self.confirmed + 1), wire.EPOCH: "1"}), 0.0)

    @precondition(lambda self: not self.plan.uncertain and any(not request.open for request in self.live))
    @rule()
    def send_again(self) -> None:
        for request in [request for request in self.live if not request.open]:
            if self.plan.error is not None:
                self._finish(request)
                continue
            self.held = False
            ticket = self.plan.before_request(request.ticket)
            if isinstance(ticket, Advance):
                assert isinstance(ticket.error, TrickleError)
                self._finish(request)
                continue
            request.ticket, request.open = ticket, True
            self.requests += 1
            if request.bound:
                self.plan.begin(ticket)

    # What the world does.

    @precondition(lambda self: any(request.open for request in self.live))
    @rule(
        at=which,
        outcome=garbage | losses | nonsense,
        sent=st.integers(0, 20),
        held=st.booleans(),
        lived_s=lives,
        really=st.sampled_from([False] * 19 + [True]),
    )
    def answer(self, at: int, outcome: ExchangeOutcome, sent: int, held: bool, lived_s: float, really: bool) -> None:
        """Any answer, at any time; not too often, since most of them are the end."""
        assume(really)
        waiting = [request for request in self.live if request.open]
        request = waiting[at % len(waiting)]
        sent = min(sent, request.handed)
        whole = request.over and sent == request.handed
        self._answered(request, outcome, sent, ended=whole, held=held or not sent, lived_s=lived_s)

    @precondition(lambda self: any(request.open for request in self.live))
    @rule(at=which, epoch=st.none() | st.integers(1, 3))
    def store(self, at: int, epoch: int | None) -> None:
        """The server did as it should, and tells the epoch, or does not know that."""
        waiting = [request for request in self.live if request.open]
        request = waiting[at % len(waiting)]
        if request.bound:
            request.over = True
            if epoch is not None and request.ticket.renewals == self.plan.numbering.renewals:
                self.told = request.ticket.renewals
            told = {} if epoch is None else {wire.EPOCH: str(epoch)}
            self._answered(request, Answer(200, {wire.SIZE: str(request.handed)} | told), request.handed, ended=True)

    @precondition(lambda self: any(request.open and request.ticket.epoch for request in self.live))
    @rule(at=which, later=st.sampled_from([None, -1, -1, 1]), sent=st.booleans())
    def be_in_another_epoch(self, at: int, later: int | None, sent: bool) -> None:
        """The channel is gone, or in another epoch; only a later one that is not our own doing ends everything."""
        waiting = [request for request in self.live if request.open and request.ticket.epoch is not None]
        request = waiting[at % len(waiting)]
        ticket, is_present = request.ticket, request.ticket.renewals == self.plan.numbering.renewals
        assert ticket.epoch is not None
        answer = Answer(404, {})
        if later is not None:
            answer = Answer(409, {wire.LATEST: str(self.confirmed + 1), wire.EPOCH: str(ticket.epoch + later)})
        self._answered(request, answer, request.handed * sent, ended=False)
        error = self.plan.error
        if later == 1 and is_present:
            assert isinstance(error, errors.Superseded)
            assert error.epoch == ticket.epoch + 1
        elif error is None and later is None:
            assert self.plan.numbering.renewals > ticket.renewals, "a channel that is gone begins again"
        elif error is None and is_present:
            assert self.plan.uncertain, "the position tells whose channel it is"

    @precondition(lambda self: any(request.open for request in self.live))
    @rule(outcome=losses)
    def lose_all(self, outcome: ExchangeOutcome) -> None:
        """Every connection breaks."""
        for request in [request for request in self.live if request.open]:
            self._answered(request, outcome, request.handed, ended=request.over)

    @precondition(lambda self: any(request.open for request in self.live))
    @rule(at=which, behind=st.integers(0, 3), sent=st.booleans())
    def be_behind(self, at: int, behind: int, sent: bool) -> None:
        """The head is where it may be, and that is too far back."""
        waiting = [request for request in self.live if request.open]
        request = waiting[at % len(waiting)]
        head = max(self.confirmed + 1, request.ticket.seq - behind)
        self._answered(request, Answer(470, {wire.LATEST: str(head)}), request.handed * sent, ended=False)

    @precondition(lambda self: any(request.open for request in self.live))
    @rule(at=which, status=st.sampled_from([429, 503]), sent=st.booleans(), lived_s=lives)
    def be_busy(self, at: int, status: int, sent: bool, lived_s: float) -> None:
        """Not now."""
        waiting = [request for request in self.live if request.open]
        request = waiting[at % len(waiting)]
        self._answered(request, Answer(status, {}), request.handed * sent, ended=False, lived_s=lived_s)

    @precondition(lambda self: any(request.open for request in self.live))
    @rule(at=which, sent=st.booleans(), missing=st.integers(1, 9))
    def close(self, at: int, sent: bool, missing: int) -> None:
        """Somebody else closed it, before it began or in the middle."""
        waiting = [request for request in self.live if request.open]
        request = waiting[at % len(waiting)]
        stored = max(0, request.handed - missing) if sent else 0
        answer = Answer(200, {wire.SIZE: str(stored)})
        self._answered(request, answer, request.handed * sent, ended=sent and request.over)

    @precondition(lambda self: any(request.open and request.bound for request in self.live))
    @rule(at=which)
    def conflict(self, at: int) -> None:
        """It is closed already, at a place that may be our own doing."""
        waiting = [request for request in self.live if request.open and request.bound]
        request = waiting[at % len(waiting)]
        head = max(self.confirmed + 1, *(other.ticket.seq + 1 for other in self.live if other.bound))
        if request.ticket.exposed or request.ticket.seq + 1 < head:
            self._answered(request, Answer(409, {wire.LATEST: str(head)}), 0, ended=False)

    # What must be true.

    @invariant()
    def no_request_forgets_its_epoch(self) -> None:
        assert self.told < self.plan.numbering.renewals or self.plan.numbering.epoch is not None

    @invariant()
    def no_two_share_a_seq(self) -> None:
        seqs = [request.ticket.seq for request in self.live if request.open]
        assert len(seqs) == len(set(seqs)), seqs

    @invariant()
    def requests_are_bounded(self) -> None:
        # What waits for a server that is away is free, and follows a segment or a long quiet, or is paid for.
        assert self.paid <= BUDGET_RESERVE + BUDGET_RATIO * (self.segments + self.long)
        assert self.free <= OUTAGE_REQUESTS * (self.segments + self.long + 1) + 8 * self.backs
        # Each such event is followed by one question for the position and one retry of all that was open.
        together = MAX_IN_FLIGHT + self.depth
        events = self.paid + self.free + self.long + self.lost
        assert self.requests <= self.tickets + events * (1 + together)
        assert self.tickets <= self.fates + events * self.depth + together

    def _take(self) -> Request:
        ticket = self.plan.before_request(self.plan.take())
        assert isinstance(ticket, Ticket)
        self.held = False
        assert ticket.seq > self.confirmed, "seqs never go back"
        assert ticket.key not in self.keys, "each segment has its own key"
        self.keys.add(ticket.key)
        request = Request(ticket)
        self.live.append(request)
        self.tickets += 1
        self.requests += 1
        return request

    def _answered(
        self,
        request: Request,
        outcome: ExchangeOutcome,
        sent: int,
        *,
        ended: bool,
        held: bool = True,
        lived_s: float = 0.0,
    ) -> None:
        self.now += lived_s
        progress = Progress(sent, ended, lived_s, request.handed, request.over, held, now=self.now)
        self.long += lived_s >= IDLE_S
        known = self.plan.uncertain if isinstance(outcome, Lost) else self.held
        verdict = self.plan.on_post(request.ticket, outcome, progress)
        if isinstance(verdict, RetryAfter | Resync):
            self._wait(verdict.delay_s, outcome, lived_s, known=known and isinstance(verdict, RetryAfter))
        match verdict:
            case Advance(Receipt(seq=seq, sent=size), error):
                assert error is None
                assert seq == request.ticket.seq
                assert seq not in [other.ticket.seq for other in self.live if other is not request and other.open]
                assert size == request.handed, "a receipt is for all that was handed over"
                assert isinstance(outcome, Answer)
                stored = errors.header_int(outcome.headers, wire.SIZE)
                assert stored is None or stored >= size, "what the server has not stored was not published"
                self.segments += 1
                self.lost_at = None
                self.confirmed = max(self.confirmed, seq)
                self._finish(request)
            case Advance(None, error):
                assert isinstance(error, TrickleError)
                assert request.bound, "a segment is lost only where there was one"
                self.lost += 1
                self._finish(request)
            case RetryAfter(_, exposed):
                request.ticket, request.open = request.ticket.again(exposed=exposed), False
            case Resync(_, seq):
                assert seq > self.confirmed, "seqs never go back"
                request.ticket, request.open = request.ticket.again(seq), False
                self.live = [other for other in self.live if other.bound or other is request]
                assert self.plan.numbering.next == seq + 1
            case Stop():
                self._check_stop(verdict)
                self._finish(request)

    def _finish(self, request: Request) -> None:
        self.live.remove(request)
        self.fates += 1

    def _wait(self, delay_s: float, outcome: ExchangeOutcome, lived_s: float, *, known: bool = False) -> None:
        assert delay_s >= MIN_DELAY_S, "nothing is repeated at once"
        self.now += 0.0 if known else delay_s
        if isinstance(outcome, Answer):
            self.held = True
            if lived_s >= IDLE_S or outcome.status < 500 or errors.retry_after_s(outcome.headers) is not None:
                self.paid += not known and lived_s < IDLE_S
                return
        elif outcome.connected and not outcome.waited_s and lived_s >= IDLE_S:
            self.lost_at = None
        if not known:
            began = self.now - delay_s
            self.lost_at = began if self.lost_at is None else self.lost_at
            assert began < self.lost_at + RECONNECT_S, "somebody has to know"
            self.free += 1

    def _check_stop(self, verdict: Stop) -> None:
        assert self.plan.error is verdict.error
        self.live = [request for request in self.live if request.bound or request.open]


def test_arbitrary_answers_never_make_a_storm() -> None:
    """Requests stay bounded, nothing is repeated at once, seqs are unique and go up, and each end has its type."""
    run_state_machine_as_test(
        Publishing,
        settings=settings(
            max_examples=60,
            stateful_step_count=60,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        ),
    )
