"""The states of a compiled model, and the one table of their transitions.

A model under one budget is planned as its graphs turn up: PyTorch compiles them piece by piece, and
only running them shows what they share. :class:`compiler.several.ModelPartitioner` is in one of
these states at any time. It observes events, looks up (state, event) here, runs the action, and is
in the next state once the action has ended without an error. A pair that is not in the table cannot
occur.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where the planning of a model is."""

    SEPARATE = "separate"
    """There is no budget in bytes or shares: each graph has its own plan."""
    GIVEN = "given"
    """Plans come from a file."""
    NEW = "new"
    """No graph has been planned."""
    SINGLE = "single"
    """One graph has a plan, under the whole budget."""
    UNMET = "unmet"
    """The only graph cannot meet its share alone. Several calls of it may; if the first backward
    shows that there was one, the step says so."""
    GRAPHS_DUE = "graphs due"
    """Graphs were compiled that no plan covers. A plan over all graphs is due at the next call."""
    CALLS_DUE = "calls due"
    """Calls that were pending together exceed the budget. Plans over them are due."""
    JOINED = "joined"
    """One plan over all graphs is in force."""
    SHARED = "shared"
    """Each graph has a plan, so that calls that are pending together meet the budget."""
    GIVEN_UP = "given up"
    """Graphs still turned up after the last time that plans were made again: each new one gets its
    smallest plan from now on."""


class Event(Enum):
    """What happens to a model."""

    GRAPH = "graph"
    """A graph is compiled, where graphs do not share a budget."""
    GRAPH_FITS = "graph fits"
    """The only graph is compiled, and a plan meets the whole budget."""
    GRAPH_PUT_OFF = "graph put off"
    """The same in the first step, but no plan meets the share of what the graph takes alone."""
    GRAPH_OVER = "graph over"
    """The same, but no plan meets the budget."""
    GRAPH_NEW = "graph new"
    """A graph beside others, or that others follow, is compiled, which no plan covers."""
    GRAPH_LATE = "graph late"
    """The same, after plans were made again as often as allowed."""
    STEP_KEEPS = "step keeps"
    """The step turned out to run one graph once, which is over the budget and keeps its plan."""
    STEP_SAVES = "step saves"
    """The same, and everything is to be saved (``on_infeasible="warn"``)."""
    CALLS_OVER = "calls over"
    """Calls were pending together that exceed the budget, and plans may be made again."""
    PATH_OVER = "path over"
    """A step ran graphs that no plan has together, which exceed the budget, and plans may be made
    again."""
    REPLAN_GRAPHS = "replan graphs"
    """A call begins, for which one plan over the graphs is to be made."""
    REPLAN_CALLS = "replan calls"
    """A call begins, for which plans over pending calls are to be made."""
    SIZE_OUTGROWN = "size outgrown"
    """A call begins, and sizes exceed those that were planned."""
    SCRATCH_OVER = "scratch over"
    """Steps were measured in which scratch exceeds the budget, and plans may be made again."""
    CODE_GONE = "code gone"
    """PyTorch has dropped the compiled code (``torch._dynamo.reset()``)."""


class Action(Enum):
    """What is done on the way to the next state."""

    PLAN_ALONE = "plan_alone"
    LOOK_UP = "look_up"
    KEEP_PLAN = "keep_plan"
    PUT_OFF = "put_off"
    SETTLE = "settle"
    PLAN_AS_MIN = "plan_as_min"
    PLAN_LATE = "plan_late"
    SAY_UNMET = "say_unmet"
    SHARE = "share"
    ADD_PATH = "add_path"
    COUNT_SCRATCH = "count_scratch"
    PLAN_GRAPHS = "plan_graphs"
    PLAN_CALLS = "plan_calls"
    START_AGAIN = "start_again"
    START_FOR_SIZES = "start_for_sizes"
    FORGET_FRAMES = "forget_frames"


_S, _E, _A = State, Event, Action

TABLE: dict[tuple[State, Event], tuple[State, Action]] = {
    # graphs with plans of their own
    (_S.SEPARATE, _E.GRAPH): (_S.SEPARATE, _A.PLAN_ALONE),
    (_S.GIVEN, _E.GRAPH): (_S.GIVEN, _A.LOOK_UP),
    # the only graph
    (_S.NEW, _E.GRAPH_FITS): (_S.SINGLE, _A.KEEP_PLAN),
    (_S.SINGLE, _E.GRAPH_FITS): (_S.SINGLE, _A.KEEP_PLAN),
    (_S.CALLS_DUE, _E.GRAPH_FITS): (_S.CALLS_DUE, _A.KEEP_PLAN),
    (_S.UNMET, _E.GRAPH_FITS): (_S.SINGLE, _A.KEEP_PLAN),
    (_S.NEW, _E.GRAPH_PUT_OFF): (_S.UNMET, _A.PUT_OFF),
    (_S.UNMET, _E.GRAPH_PUT_OFF): (_S.UNMET, _A.PUT_OFF),
    (_S.UNMET, _E.STEP_KEEPS): (_S.SINGLE, _A.SAY_UNMET),
    (_S.UNMET, _E.STEP_SAVES): (_S.GRAPHS_DUE, _A.SAY_UNMET),
    (_S.NEW, _E.GRAPH_OVER): (_S.SINGLE, _A.SETTLE),
    (_S.SINGLE, _E.GRAPH_OVER): (_S.SINGLE, _A.SETTLE),
    (_S.CALLS_DUE, _E.GRAPH_OVER): (_S.CALLS_DUE, _A.SETTLE),
    # graphs of a step with several
    (_S.NEW, _E.GRAPH_NEW): (_S.GRAPHS_DUE, _A.PLAN_AS_MIN),
    (_S.SINGLE, _E.GRAPH_NEW): (_S.GRAPHS_DUE, _A.PLAN_AS_MIN),
    (_S.UNMET, _E.GRAPH_NEW): (_S.GRAPHS_DUE, _A.PLAN_AS_MIN),
    (_S.GRAPHS_DUE, _E.GRAPH_NEW): (_S.GRAPHS_DUE, _A.PLAN_AS_MIN),
    (_S.CALLS_DUE, _E.GRAPH_NEW): (_S.CALLS_DUE, _A.PLAN_AS_MIN),
    (_S.JOINED, _E.GRAPH_NEW): (_S.GRAPHS_DUE, _A.PLAN_AS_MIN),
    (_S.SHARED, _E.GRAPH_NEW): (_S.GRAPHS_DUE, _A.PLAN_AS_MIN),
    (_S.JOINED, _E.GRAPH_LATE): (_S.GIVEN_UP, _A.PLAN_LATE),
    (_S.SHARED, _E.GRAPH_LATE): (_S.GIVEN_UP, _A.PLAN_LATE),
    (_S.GIVEN_UP, _E.GRAPH_LATE): (_S.GIVEN_UP, _A.PLAN_LATE),
    # calls that are pending together
    (_S.SINGLE, _E.CALLS_OVER): (_S.CALLS_DUE, _A.SHARE),
    (_S.UNMET, _E.CALLS_OVER): (_S.CALLS_DUE, _A.SHARE),
    (_S.GRAPHS_DUE, _E.CALLS_OVER): (_S.CALLS_DUE, _A.SHARE),
    (_S.CALLS_DUE, _E.CALLS_OVER): (_S.CALLS_DUE, _A.SHARE),
    (_S.JOINED, _E.CALLS_OVER): (_S.CALLS_DUE, _A.SHARE),
    (_S.SHARED, _E.CALLS_OVER): (_S.CALLS_DUE, _A.SHARE),
    # steps that take other paths than the planned ones
    (_S.JOINED, _E.PATH_OVER): (_S.GRAPHS_DUE, _A.ADD_PATH),
    (_S.SHARED, _E.PATH_OVER): (_S.GRAPHS_DUE, _A.ADD_PATH),
    # scratch that no plan has counted
    (_S.SINGLE, _E.SCRATCH_OVER): (_S.GRAPHS_DUE, _A.COUNT_SCRATCH),
    (_S.JOINED, _E.SCRATCH_OVER): (_S.GRAPHS_DUE, _A.COUNT_SCRATCH),
    # plans that are made again before a call
    (_S.GRAPHS_DUE, _E.REPLAN_GRAPHS): (_S.JOINED, _A.PLAN_GRAPHS),
    (_S.GRAPHS_DUE, _E.REPLAN_CALLS): (_S.SHARED, _A.PLAN_CALLS),
    (_S.CALLS_DUE, _E.REPLAN_CALLS): (_S.SHARED, _A.PLAN_CALLS),
    # larger sizes than planned
    (_S.SINGLE, _E.SIZE_OUTGROWN): (_S.NEW, _A.START_FOR_SIZES),
    (_S.UNMET, _E.SIZE_OUTGROWN): (_S.NEW, _A.START_FOR_SIZES),
    (_S.GRAPHS_DUE, _E.SIZE_OUTGROWN): (_S.NEW, _A.START_FOR_SIZES),
    (_S.CALLS_DUE, _E.SIZE_OUTGROWN): (_S.NEW, _A.START_FOR_SIZES),
    (_S.JOINED, _E.SIZE_OUTGROWN): (_S.NEW, _A.START_FOR_SIZES),
    (_S.SHARED, _E.SIZE_OUTGROWN): (_S.NEW, _A.START_FOR_SIZES),
    (_S.GIVEN_UP, _E.SIZE_OUTGROWN): (_S.NEW, _A.START_FOR_SIZES),
    # compiled code that PyTorch has dropped; plans over several graphs stay
    (_S.SEPARATE, _E.CODE_GONE): (_S.SEPARATE, _A.START_AGAIN),
    (_S.GIVEN, _E.CODE_GONE): (_S.GIVEN, _A.START_AGAIN),
    (_S.SINGLE, _E.CODE_GONE): (_S.NEW, _A.START_AGAIN),
    (_S.UNMET, _E.CODE_GONE): (_S.NEW, _A.START_AGAIN),
    (_S.GRAPHS_DUE, _E.CODE_GONE): (_S.GRAPHS_DUE, _A.FORGET_FRAMES),
    (_S.CALLS_DUE, _E.CODE_GONE): (_S.CALLS_DUE, _A.FORGET_FRAMES),
    (_S.JOINED, _E.CODE_GONE): (_S.JOINED, _A.FORGET_FRAMES),
    (_S.SHARED, _E.CODE_GONE): (_S.SHARED, _A.FORGET_FRAMES),
    (_S.GIVEN_UP, _E.CODE_GONE): (_S.GIVEN_UP, _A.FORGET_FRAMES),
}

DUE = (State.GRAPHS_DUE, State.CALLS_DUE)
"""States in which plans are to be made again before the next call."""

NOT_SHARED = (State.SEPARATE, State.GIVEN)
"""States in which graphs do not share one budget."""

COUNTS_SCRATCH = (State.SINGLE, State.JOINED)
"""States in which one plan is in force, so that scratch can be counted in it."""

WHOLE = (State.JOINED, State.SHARED)
"""States in which plans are those of whole steps."""

BEHIND = (*DUE, State.GIVEN_UP)
"""States in which graphs run that no plan in force covers."""

FIRST_GRAPH = (State.NEW, State.SINGLE, State.UNMET, State.CALLS_DUE)
"""States in which a graph may get the whole budget, if it is the only one."""


class TransitionError(RuntimeError):
    """An event that cannot occur in a state: a mistake in this package."""


def transition(state: State, event: Event) -> tuple[State, Action]:
    """The next state, and what to do on the way there.

    Raises:
        TransitionError: the table has no such row.
    """
    try:
        return TABLE[state, event]
    except KeyError:
        raise TransitionError(f"event {event.value!r} in state {state.value!r}") from None
